"""Liveness: rollups and upkeep of all tenants continue, whatever another tenant sends."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

from chaos.operators.evidence import Evidence
from chaos.operators.world import World
from chaos.oracle import Finding, some
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance.policy import needs
from pulse_resources import postgres

ROLLUP = "daily"
SUMMARIES = """
SELECT s.day, s.error, s.rows FROM summaries s WHERE s.dataset_id = %s AND s.rollup = %s
"""
AT_ONCE = (Task.MERGE, Task.SORT, Task.MANIFESTS, Task.EXPIRE)
"""Tasks done by the first upkeep; orphan removal may wait until no other writer is active."""


def find_violations(worlds: Sequence[World], evidence: dict[str, Evidence]) -> list[Finding]:
    """Work not done for well-behaved tenants after everything was computed and maintained."""
    findings = []
    for world in worlds:
        if not world.hostile and (tenant_evidence := evidence.get(world.tenant.slug)):
            for kind, wrong in (
                *_curated(world, tenant_evidence),
                ("upkeep that was not done", pending_tasks(world)),
            ):
                if wrong:
                    findings.append(Finding(kind, world.tenant.slug, some(wrong)))
    return findings


def _curated(world: World, evidence: Evidence) -> Iterator[tuple[str, list[Any]]]:
    """Check that each day's summary counts the day's rows."""
    for life in evidence.lives:
        if life.deleted:
            continue
        days = Counter(row["timestamp"].date() for rows in life.rows.values() for row in rows)
        with postgres.tenant_transaction("pulse_pipeline", world.tenant.tenant_id) as connection:
            served = connection.execute(SUMMARIES, [life.dataset_id, ROLLUP]).fetchall()
        counted: dict[date, object] = {
            day: error or sum(r["events"] for r in rows) for day, error, rows in served
        }
        wrong = [
            (day, counted.get(day), days[day])
            for day in sorted({*days, *counted})
            if counted.get(day, 0) != days[day]
        ]
        yield f"{life.slug}: days that are not computed", wrong


def pending_tasks(world: World) -> list[str]:
    """Tasks that a tenant's tables still need, except those that may wait."""
    pending = (need for need in needs(world.tenant.slug) if need.task in AT_ONCE)
    return [f"{need.slug} {need.day or ''} {need.task}: {need.reason}" for need in pending]
