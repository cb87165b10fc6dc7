"""Issues from asset checks whose latest evaluation failed."""

from collections.abc import Callable, Iterator

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.evaluation import SHOWN as LISTED
from pulse_pipelines.monitoring.issues import Issue, Kind, brief
from pulse_pipelines.runtime.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED,
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from pulse_pipelines.runtime.storage import failing_check_keys

SHOWN = 20
"""Tenants that an issue names, at most."""
FAILED = AssetCheckExecutionRecordStatus.FAILED


def failing_checks(
    instance: dg.DagsterInstance, is_shown: Callable[[dg.AssetCheckKey], bool]
) -> Iterator[Issue]:
    """One issue per check whose latest evaluation failed, for a tenant that still has the dataset.

    Args:
        is_shown: whether there is a check still.
    """
    keys = [key for key in failing_check_keys(instance) if is_shown(key)]
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    for key, record in latest.items():
        if record.status is AssetCheckExecutionRecordStatus.PLANNED:  # running: its last result still holds
            history = instance.event_log_storage.get_asset_check_execution_history(key, 1, status=COMPLETED)
            record = history[0] if history else record
        if record.status is FAILED and not _is_deleted(key, record.evaluation):
            yield _failing(key, record)


def _failing(key: dg.AssetCheckKey, record: AssetCheckExecutionRecord) -> Issue:
    asset = key.asset_key.to_user_string()
    evaluation = record.evaluation
    warns = evaluation is not None and evaluation.severity is dg.AssetCheckSeverity.WARN
    problem = (evaluation and evaluation.description) or "it did not pass"
    return Issue(
        Kind.CHECK_FAILING,
        f"{asset}/{key.name}",
        "warning" if warns else "error",
        brief(f"the check {key.name} of {asset} fails: {problem}"),
        "Its description in Dagster says what to do",
        {"dataset": key.asset_key.path[-1], "check": key.name, "run": record.run_id} | _tenants(evaluation),
    )


def _tenants(evaluation: dg.AssetCheckEvaluation | None) -> dict[str, str]:
    """Tenants at fault, if the check names them."""
    slugs = sorted(set(_at_fault(evaluation)))
    return {"tenants": ", ".join(slugs[:SHOWN])} if slugs else {}


def _at_fault(evaluation: dg.AssetCheckEvaluation | None) -> list[str]:
    """The tenant of each problem that the check lists."""
    table = evaluation.metadata.get("at_fault") if evaluation else None
    if not isinstance(table, dg.TableMetadataValue):
        return []
    return [str(record.data["tenant"]) for record in table.records if "tenant" in record.data]


def _is_deleted(key: dg.AssetCheckKey, evaluation: dg.AssetCheckEvaluation | None) -> bool:
    """Whether all tenants at fault have deleted the dataset: the next look at whole tables will find none."""
    at_fault = _at_fault(evaluation)
    if not at_fault or len(at_fault) >= LISTED:  # there may be more
        return False
    owners = registry.family_owners(key.asset_key.path[-1])
    return not set(at_fault) & {tenant.slug for tenant in owners}
