"""MCP tools that look up datasets and events, without running a query of the caller's."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from pulse_api.mcp.arguments import DeadLetterArguments, DescribeArguments, OfAll, OfSome, TraceArguments
from pulse_api.mcp.queries import read
from pulse_api.mcp.session import Answer, Session
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.ask import meaning, record, samples
from pulse_pipelines.ask.meaning import Meaning
from pulse_pipelines.curated import tables
from pulse_pipelines.dead_letters import Filter
from pulse_pipelines.domain.requests import LetterState
from pulse_pipelines.domain.tenant import LATEST, Tenant
from pulse_pipelines.monitoring import checks, trace
from pulse_pipelines.monitoring.dataset_states import DatasetState, dataset_states
from pulse_resources.errors import Forbidden
from pulse_resources.settings import load_settings

T = TypeVar("T")
Next = Mapping[str, Any] | None
"""Arguments that lead to the page after this one; None: there is none."""
SAMPLED_ROWS = 3
SHOWN_VALUES = 50
"""Most values of a column that are shown, of those that its schema lists."""


async def list_datasets(session: Session, arguments: OfAll) -> Answer:
    """A page of the datasets, each with its description."""

    def read_page() -> tuple[Next, list[dict[str, Any]]]:
        meanings = meaning.of_tenant(session.tenant)
        page, following = _page(meanings, arguments, lambda entry: entry.dataset)
        about = [
            {
                "title": entry.title,
                "description": entry.description,
                "rows_are": "versions of entities" if entry.of_entities else "events",
                "columns": len(entry.fields),
                "rollups": [rollup.table for rollup in entry.rollups if rollup.table],
            }
            for entry in page
        ]
        states = _states(session.tenant, [entry.dataset for entry in page])
        return following, [state | more for state, more in zip(states, about, strict=True)]

    following, datasets = await asyncio.to_thread(read_page)
    return Answer({"tenant": session.tenant.slug, "next": following}, {"datasets": datasets})


async def describe_dataset(session: Session, arguments: DescribeArguments) -> Answer:
    """Contract, meaning of the columns, freshness, checks, rollups, limits, and a few rows."""

    def describe() -> tuple[dict[str, Any], Meaning]:
        dataset = registry.find_dataset(session.tenant, arguments.dataset)
        layer = meaning.find_meaning(session.tenant, arguments.dataset)
        limits = load_settings().sql
        names = [rollup.name for rollup in layer.rollups]
        states = tables.states(session.tenant, dataset.slug, names)
        facts = {
            "dataset": dataset.slug,
            "schema": dataset.schema_uri,
            "schema_versions": sorted(dataset.documents),
            "invalid_events": dataset.on_invalid,
            "created_at": dataset.created_at,
            "time_column": "timestamp",
            "checks": [
                asdict(latest_result) for latest_result in checks.latest_results(session.tenant, dataset.slug)
            ],
            "rollups": [{"rollup": name, **asdict(states[name])} for name in names],
            "latest_state": session.tenant.curated_table(dataset.slug, LATEST)[1]
            if dataset.of_entities
            else None,
            "limits_of_a_query": {
                "seconds": limits.seconds,
                "rows": limits.rows,
                "bytes": limits.result_bytes,
            },
        }
        return facts, layer

    facts, layer = await asyncio.to_thread(describe)
    last = arguments.offset + arguments.limit
    fields = layer.fields[arguments.offset : last]
    sample = await session.query(samples.sql(layer, fields, SAMPLED_ROWS))
    facts |= await read(session, sample)
    facts |= {
        "columns_in_all": len(layer.fields),
        "next": {"offset": last} if last < len(layer.fields) else None,
    }
    shortened = tuple(replace(field, values=field.values[:SHOWN_VALUES]) for field in fields)
    shown = asdict(replace(layer, fields=shortened))
    return Answer(facts, {"meaning": shown, "sample_rows": [samples.shown(row) for row in sample.rows]})


async def freshness(session: Session, arguments: OfSome) -> Answer:
    """When events landed last in one dataset, or in a page of all, and with which snapshot."""

    def read_states() -> dict[str, Any]:
        if arguments.dataset:
            dataset = registry.find_dataset(session.tenant, arguments.dataset)
            return {"datasets": _states(session.tenant, [dataset.slug]), "next": None}
        slugs = registry.list_slugs(session.tenant, arguments.after, arguments.limit + 1)
        page, following = _page(slugs, arguments, lambda slug: slug)
        return {"datasets": _states(session.tenant, page), "next": following}

    return Answer(await asyncio.to_thread(read_states))


def _page(datasets: Sequence[T], arguments: OfAll, slug: Callable[[T], str]) -> tuple[list[T], Next]:
    """The datasets of a page."""
    ordered = sorted((dataset for dataset in datasets if slug(dataset) > (arguments.after or "")), key=slug)
    page = ordered[: arguments.limit]
    return page, {"after": slug(page[-1])} if len(ordered) > arguments.limit else None


def _states(tenant: Tenant, slugs: Sequence[str]) -> list[dict[str, Any]]:
    """Freshness and snapshot of some datasets."""
    return [_described(state) for state in dataset_states(tenant, slugs)]


def _described(state: DatasetState) -> dict[str, Any]:
    if state.problem is not None:
        return {"dataset": state.dataset, "problem": state.problem}
    return {
        "dataset": state.dataset,
        "events_landed_last": state.events_landed_last,
        "snapshot_id": None if state.snapshot_id is None else str(state.snapshot_id),
        "committed_at": state.committed_at,
        "rows": state.rows,
    }


async def letters(session: Session, arguments: DeadLetterArguments) -> Answer:
    """Events that could not land, the latest first, without their bytes."""
    _needs_read(session)
    list_letters = partial(
        dead_letters.list_dead_letters,
        session.tenant,
        Filter(arguments.dataset),
        state=LetterState.OPEN,
        limit=arguments.limit,
        after=arguments.cursor,
    )
    page = await asyncio.to_thread(list_letters)
    counts = await asyncio.to_thread(dead_letters.summary, session.tenant, Filter(arguments.dataset))
    if (
        arguments.dataset is not None and not counts
    ):  # events to a dataset that never was are dead letters, too
        await asyncio.to_thread(registry.find_dataset, session.tenant, arguments.dataset)
    return Answer(
        {
            "as_of": datetime.now(UTC),
            "next_cursor": page.next,
            "open_by_reason": {count.reason: count.count for count in counts},
        },
        {"dead_letters": [asdict(letter) for letter in page.letters]},
    )


async def trace_event(session: Session, arguments: TraceArguments) -> Answer:
    """What became of one event."""
    _needs_read(session)
    find_event = partial(trace.by_id, session.tenant, arguments.event_id, dataset=arguments.dataset)
    outcome: trace.Trace = await session.run_blocking(find_event)
    slugs = sorted({fate.dataset for fate in outcome.fates if fate.dataset})
    return Answer(
        {
            "state": outcome.state,
            "settled": outcome.settled,
            "looked_at": list(outcome.looked_at),
            "freshness": await asyncio.to_thread(record.freshness, session.tenant, slugs),
        },
        {"fates": [asdict(fate) for fate in outcome.fates]},
    )


def _needs_read(session: Session) -> None:
    if not session.may_trace:
        raise Forbidden("the key lacks the scope read", fix="Use another key, or issue one with this scope")
