"""Asset check evaluations: result, numbers, tenants at fault, and duration."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.monitoring.checks import CHECKS, CheckSummary
from pulse_pipelines.runtime.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED,
    AssetCheckExecutionRecordStatus,
)

SHOWN = 200
"""Problems listed per evaluation; the count of tenants at fault is always complete."""

Problem = Mapping[str, str]
"""Keys: `tenant`, `problem` and `severity` (error or warning)."""


@dataclass(frozen=True)
class LatestEvaluation:
    """Latest evaluation of a check, carried over until whole tables are checked again."""

    problems: tuple[Problem, ...] = ()
    whole_at: float | None = None
    """When whole tables were checked last; None: never."""


def latest_evaluations(
    instance: dg.DagsterInstance, slugs: Sequence[str]
) -> dict[tuple[str, str], LatestEvaluation]:
    """Latest evaluations of the checks of some slugs, by slug and check, in one query."""
    keys = {dg.AssetCheckKey(asset_key(slug), name): (slug, name) for slug in slugs for name in CHECKS}
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(keys))
    evaluations = dict.fromkeys(keys.values(), LatestEvaluation())
    for key, record in latest.items():
        evaluation = record.evaluation
        if record.status is AssetCheckExecutionRecordStatus.PLANNED:  # running: its last result still holds
            ended = instance.event_log_storage.get_asset_check_execution_history(key, 1, status=COMPLETED)
            evaluation = ended[0].evaluation if ended else None
        if evaluation is not None:
            evaluations[keys[key]] = _latest(evaluation.metadata)
    return evaluations


def _latest(metadata: Mapping[str, dg.MetadataValue]) -> LatestEvaluation:
    table, moment = metadata.get("at_fault"), metadata.get("whole_tables_at")
    return LatestEvaluation(
        tuple({k: str(v) for k, v in record.data.items()} for record in table.records)
        if isinstance(table, dg.TableMetadataValue)
        else (),
        moment.value if isinstance(moment, dg.TimestampMetadataValue) else None,
    )


def evaluation(
    slug: str,
    name: str,
    summary: CheckSummary,
    *,
    batch_id: str | None = None,
    before: LatestEvaluation = LatestEvaluation(),
) -> dg.AssetCheckEvaluation:
    """Build the evaluation of one check for one slug, over all checked tenants.

    Args:
        batch_id: batch whose rows were checked; None: whole tables.
        before: latest evaluation; problems of tenants not checked now are carried over.
    """
    problems: list[Problem] = [
        {
            "tenant": tenant,
            "problem": problem[:500],
            "severity": "error" if summary.results[tenant].grave else "warning",
        }
        for tenant, problem in summary.problems
    ]
    if batch_id is not None:
        problems += [p for p in before.problems if p["tenant"] not in summary.results]
    tenants = len(summary.results)
    metadata: dict[str, object] = summary.numbers | {
        "tenants": tenants,
        "tenants_at_fault": len({problem["tenant"] for problem in problems}),
        "scope": f"batch {batch_id}" if batch_id else "whole tables",
        "seconds": round(summary.seconds, 6),
        "ms_per_table": round(summary.seconds * 1000 / max(tenants, 1), 3),
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
