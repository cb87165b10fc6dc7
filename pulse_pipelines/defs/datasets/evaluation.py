"""What a check says in the Dagster UI: whether it passed, its numbers, who is at fault, and what it cost."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.monitoring.checks import CHECKS, Outcome
from pulse_pipelines.runtime.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED,
)
from pulse_pipelines.runtime.dagster_internals import AssetCheckExecutionRecordStatus

SHOWN = 200
"""Problems that an evaluation lists; it always has the count of tenants at fault."""

Problem = Mapping[str, str]
"""`tenant`, `problem` and `severity` (error or warning)."""


@dataclass(frozen=True)
class Standing:
    """What the latest evaluation of a check says of whole tables, and so goes on until the next of them."""

    problems: tuple[Problem, ...] = ()
    whole_at: float | None = None
    """When whole tables were looked at; None: never."""


def standing(instance: dg.DagsterInstance, slugs: Sequence[str]) -> dict[tuple[str, str], Standing]:
    """How the checks of some slugs stand, by slug and check, in one query."""
    keys = {dg.AssetCheckKey(asset_key(slug), name): (slug, name) for slug in slugs for name in CHECKS}
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(keys))
    found = dict.fromkeys(keys.values(), Standing())
    for key, record in latest.items():
        said = record.evaluation
        if record.status is AssetCheckExecutionRecordStatus.PLANNED:  # it runs: what it said last still holds
            ended = instance.event_log_storage.get_asset_check_execution_history(key, 1, status=COMPLETED)
            said = ended[0].evaluation if ended else None
        if said is not None:
            found[keys[key]] = _standing(said.metadata)
    return found


def _standing(metadata: Mapping[str, dg.MetadataValue]) -> Standing:
    table, moment = metadata.get("at_fault"), metadata.get("whole_tables_at")
    return Standing(
        tuple({k: str(v) for k, v in record.data.items()} for record in table.records)
        if isinstance(table, dg.TableMetadataValue)
        else (),
        moment.value if isinstance(moment, dg.TimestampMetadataValue) else None,
    )


def evaluation(
    slug: str, name: str, outcome: Outcome, *, batch_id: str | None = None, before: Standing = Standing()
) -> dg.AssetCheckEvaluation:
    """One check of one slug, over all tenants that were looked at.

    Args:
        batch_id: of the batch whose tables were looked at; None: whole tables.
        before: problems of tenants that were not looked at now remain.
    """
    problems: list[Problem] = [
        {
            "tenant": tenant,
            "problem": problem[:500],
            "severity": "error" if outcome.findings[tenant].grave else "warning",
        }
        for tenant, problem in outcome.problems
    ]
    if batch_id is not None:
        problems += [p for p in before.problems if p["tenant"] not in outcome.findings]
    looked_at = len(outcome.findings)
    metadata: dict[str, object] = outcome.numbers | {
        "tenants": looked_at,
        "tenants_at_fault": len({problem["tenant"] for problem in problems}),
        "scope": f"batch {batch_id}" if batch_id else "whole tables",
        "seconds": round(outcome.seconds, 6),
        "ms_per_table": round(outcome.seconds * 1000 / max(looked_at, 1), 3),
    }
    if moment := time.time() if batch_id is None else before.whole_at:
        metadata["whole_tables_at"] = dg.MetadataValue.timestamp(moment)
    if problems:
        metadata["at_fault"] = dg.MetadataValue.table([dg.TableRecord(dict(p)) for p in problems[:SHOWN]])
    grave = any(problem["severity"] == "error" for problem in problems)
    return dg.AssetCheckEvaluation(
        asset_key=asset_key(slug),
        check_name=name,
        passed=not problems,
        severity=dg.AssetCheckSeverity.ERROR if grave else dg.AssetCheckSeverity.WARN,
        metadata=metadata,  # type: ignore[arg-type]
        description=f"tenant {problems[0]['tenant']}: {problems[0]['problem']}" if problems else None,
    )
