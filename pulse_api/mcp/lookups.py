"""MCP tools that look up datasets and events, without running a query of the caller's."""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any

from pulse_api.mcp.arguments import DeadLetterArguments, NoArguments, OfDataset, OfSome, TraceArguments
from pulse_api.mcp.session import Answer, Session
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.ask import meaning, record
from pulse_pipelines.dead_letters import Filter
from pulse_pipelines.domain.requests import State
from pulse_pipelines.monitoring import trace
from pulse_pipelines.query import snapshots
from pulse_resources.errors import Forbidden
from pulse_resources.settings import load_settings

SAMPLED_ROWS = 3


async def list_datasets(session: Session, _: NoArguments) -> Answer:
    """Every dataset, with what it is about."""

    def look() -> list[dict[str, Any]]:
        found = meaning.of_tenant(session.tenant)
        fresh = record.freshness(session.tenant, [each.dataset for each in found])
        return [
            {
                "dataset": each.dataset,
                "title": each.title,
                "description": each.description,
                "rows_are": "versions of entities" if each.of_entities else "events",
                "columns": len(each.fields),
                "events_landed_last": fresh.get(each.dataset),
            }
            for each in found
        ]

    return Answer({"tenant": session.tenant.slug}, {"datasets": await asyncio.to_thread(look)})


async def describe_dataset(session: Session, given: OfDataset) -> Answer:
    """Contract, meaning of the columns, freshness, limits, and a few rows."""

    def look() -> tuple[dict[str, Any], dict[str, Any]]:
        dataset = registry.find_dataset(session.tenant, given.dataset)
        found = meaning.of_one(session.tenant, given.dataset)
        limits = load_settings().sql
        facts = {
            "dataset": dataset.slug,
            "schema": dataset.schema_uri,
            "schema_versions": sorted(dataset.documents),
            "invalid_events": dataset.on_invalid,
            "created_at": dataset.created_at,
            "events_landed_last": record.freshness(session.tenant, [dataset.slug]).get(dataset.slug),
            "limits_of_a_query": {
                "seconds": limits.seconds,
                "rows": limits.rows,
                "bytes": limits.result_bytes,
            },
            "time_column": "timestamp",
        }
        return facts, {"meaning": asdict(found)}

    facts, untrusted = await asyncio.to_thread(look)
    sample = await session.query(f'SELECT * FROM "{given.dataset}" LIMIT {SAMPLED_ROWS}')  # noqa: S608
    facts["snapshots"] = dict(sample.snapshots)
    return Answer(facts, untrusted | {"sample_rows": list(sample.rows)})


async def freshness(session: Session, given: OfSome) -> Answer:
    """When events landed last, and with which snapshot."""

    def look() -> list[dict[str, Any]]:
        slugs = (
            [given.dataset]
            if given.dataset
            else [each.slug for each in registry.list_datasets(session.tenant)]
        )
        found = []
        fresh = record.freshness(session.tenant, slugs)
        for slug in slugs:
            newest = snapshots.snapshots(session.tenant, slug, 1)
            found.append(
                {
                    "dataset": slug,
                    "events_landed_last": fresh.get(slug),
                    "snapshot_id": newest[0].snapshot_id if newest else None,
                    "committed_at": newest[0].committed_at if newest else None,
                    "rows": newest[0].total_rows if newest else 0,
                }
            )
        return found

    return Answer({"datasets": await asyncio.to_thread(look)})


async def letters(session: Session, given: DeadLetterArguments) -> Answer:
    """Events that could not land, the latest first, without their bytes."""
    _needs_read(session)
    look = partial(
        dead_letters.list_dead_letters,
        session.tenant,
        Filter(given.dataset),
        state=State.OPEN,
        limit=given.limit,
        after=given.cursor,
    )
    page = await asyncio.to_thread(look)
    counts = await asyncio.to_thread(dead_letters.summary, session.tenant, Filter(given.dataset))
    return Answer(
        {"next_cursor": page.next, "open_by_reason": {each.reason: each.count for each in counts}},
        {"dead_letters": [asdict(letter) for letter in page.letters]},
    )


async def trace_event(session: Session, given: TraceArguments) -> Answer:
    """What became of one event."""
    _needs_read(session)
    look = partial(trace.by_id, session.tenant, given.event_id, dataset=given.dataset)
    found: trace.Trace = await session.look(look)
    return Answer(
        {"state": found.state, "settled": found.settled, "looked_at": list(found.looked_at)},
        {"fates": [asdict(fate) for fate in found.fates]},
    )


def _needs_read(session: Session) -> None:
    if not session.may_trace:
        raise Forbidden("the key lacks the scope read", fix="Use another key, or issue one with this scope")
