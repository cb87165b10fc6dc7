"""The demo's report: events sent, their outcomes, throughput, reconciliation, and answers to questions."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from pulse_api.demo.operations import TENANT, TableLine
from pulse_api.demo.run import Counts
from pulse_api.demo.source import OPERATOR, Event
from pulse_pipelines import registry
from pulse_pipelines.ask import answer, local
from pulse_pipelines.ask.answer import Answer
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.reconcile import TenantReport
from pulse_pipelines.query import duckdb_pool
from pulse_resources import postgres

BATCHES = """
SELECT batch_id, started_at, settled_at FROM ingest_batches
WHERE state = 'settled' AND planned_at >= %s ORDER BY started_at
"""
SETTLED_AT = "SELECT batch_id, max(landed_at) FROM landings WHERE landed_at >= %s GROUP BY batch_id"
INGESTED_AT = f"""
SELECT _batch, (epoch_us(ingested_at) / 1e6)::DOUBLE AS ingested
FROM {duckdb_pool.SCAN} WHERE ingested_at >= ?
"""  # noqa: S608

AIRLINES_QUESTIONS = (
    "How many flights were there from each airport?",
    "Which destination has the highest average departure delay?",
)
OPERATORS_QUESTION = "What is the average temperature by origin?"


@dataclass(frozen=True)
class TenantLine:
    slug: str
    sent: int
    counts: Counts
    expected_dead: int
    """Sent events that are invalid by the source data alone."""
    reconciled: TenantReport

    @property
    def balanced(self) -> bool:
        settled = self.counts.landed + self.counts.duplicates
        return (
            self.sent == self.counts.drained
            and self.counts.dead_letters == self.expected_dead
            and settled == self.sent - self.expected_dead
            and self.reconciled.balanced
        )


def invalid_events(events: Sequence[Event]) -> dict[str, int]:
    """Number of events of each tenant that are invalid by the source data alone."""
    totals: dict[str, int] = {}
    for event in events:
        totals[event.tenant] = totals.get(event.tenant, 0) + (not event.valid)
    return totals


def busy_seconds(since: datetime) -> float:
    """Seconds in which at least one batch was under way."""
    with postgres.transaction("pulse_pipeline") as connection:
        spans = connection.execute(BATCHES, [since]).fetchall()
    total, until = 0.0, None
    for _, started, settled in spans:
        if until is None or started > until:
            total += (settled - started).total_seconds()
            until = settled
        elif settled > until:
            total += (settled - until).total_seconds()
            until = settled
    return total


def freshness(tenants: Sequence[Tenant], since: datetime) -> tuple[float, float]:
    """p50 and p95 of accepted → queryable in seconds, over every row landed since then."""
    waits: list[Any] = []
    for tenant in tenants:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            settled = {b: at.timestamp() for b, at in connection.execute(SETTLED_AT, [since])}
        for dataset in registry.list_datasets(tenant):
            if dataset.of_entities:
                continue
            location = registry.current_table(tenant, dataset.slug).metadata_location
            with duckdb_pool.connect() as connection_:
                rows = connection_.execute(INGESTED_AT, [location, since]).fetchnumpy()
            landed = np.array([settled.get(b, np.nan) for b in rows["_batch"]], float)
            waits.append(landed - np.asarray(rows["ingested"], float))
    everything = np.concatenate(waits) if waits else np.empty(0)
    everything = everything[~np.isnan(everything)]
    if not len(everything):
        return 0.0, 0.0
    return float(np.percentile(everything, 50)), float(np.percentile(everything, 95))


def answers(tenants: dict[str, Tenant], largest: str) -> list[Answer]:
    """Three questions, answered from the lake by the embedded grammar.

    Args:
        largest: the slug of an airline.

    Raises:
        PulseError: SQL is off, or the tables cannot be read.
    """
    answers = []
    for slug, questions in ((largest, AIRLINES_QUESTIONS), (OPERATOR, (OPERATORS_QUESTION,))):
        with local.queries(tenants[slug]) as run:
            for question in questions:
                answers.append(asyncio.run(answer.answer(tenants[slug], question, answer.Grammar(), run)))
    return answers


def show_tables(console: Console, lines: Sequence[TableLine]) -> None:
    """Print what became of the tables of the operational database."""
    balanced = all(line.balanced for line in lines)
    table = Table("table", title=f"Every row of {TENANT}'s database accounted for, before and after changes")
    for name in ("rows", "new", "changed", "unchanged", "deleted", "differ"):
        table.add_column(name, justify="right")
    table.add_column("balanced", footer="yes" if balanced else "NO")
    for line in lines:
        counts = (line.count(outcome) for outcome in ("created", "changed", "unchanged", "deleted"))
        verdict = "yes" if line.balanced else "[red]NO"
        table.add_row(line.name, *(f"{count:,}" for count in (line.rows, *counts, line.differing)), verdict)
    console.print(table)


def as_json(
    lines: Sequence[TenantLine], speed: dict[str, float], *, dagster_ui: str, console: str
) -> dict[str, Any]:
    """The content of demo-report.json."""
    rows = {
        line.slug: {
            "sent": line.sent,
            "landed": line.counts.landed,
            "duplicates": line.counts.duplicates,
            "dead_letters": line.counts.dead_letters,
        }
        for line in lines
    }
    keys = ("sent", "landed", "duplicates", "dead_letters")
    totals = {key: sum(row[key] for row in rows.values()) for key in keys}
    return {
        "tenants": rows,
        "totals": totals,
        "balanced": all(line.balanced for line in lines),
        **speed,
        "dagster_ui": dagster_ui,
        "console": console,
    }


def show(console: Console, lines: Sequence[TenantLine], document: dict[str, Any]) -> None:
    """Print the report."""
    table = Table("tenant", title="Every event accounted for", show_footer=True)
    for name in ("sent", "landed", "duplicates", "dead letters"):
        total = document["totals"][name.replace(" ", "_")]
        table.add_column(name, justify="right", footer=f"{total:,}")
    table.add_column("balanced", footer="yes" if document["balanced"] else "NO")
    for line in lines:
        numbers = (line.sent, line.counts.landed, line.counts.duplicates, line.counts.dead_letters)
        verdict = "yes" if line.balanced else "[red]NO"
        table.add_row(line.slug, *(f"{number:,}" for number in numbers), verdict)
    console.print(table)
    for line in lines:
        for problem in line.reconciled.problems:
            console.print(f"[red]{line.slug}[/red]: {problem}", highlight=False)
    console.print(
        f"collected   {document['collect_events_per_second']:,.0f} events/s through POST /v1/collect\n"
        f"throughput  {document['events_per_second']:,.0f} events/s while batches ran "
        f"({document['busy_s']:.1f} s of {document['elapsed_s']:.1f} s)\n"
        + (
            f"freshness   p50 {document['freshness_p50_s']:.1f} s, "
            f"p95 {document['freshness_p95_s']:.1f} s from accepted to queryable"
            if document["freshness_p95_s"]
            else "freshness   no row is new: all of this landed in an earlier run"
        ),
        highlight=False,
    )
    if any(line.counts.dead_letters for line in lines):
        console.print("Dead letters lack a field that their schema requires: pulse dlq summary <tenant>")
