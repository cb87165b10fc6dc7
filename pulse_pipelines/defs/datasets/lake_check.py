"""Scheduled check of the whole lake: one run checks datasets within a time budget."""

import random
import time
from collections.abc import Iterator, Sequence

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.evaluation import evaluation, latest_evaluations
from pulse_pipelines.defs.launches import unfinished
from pulse_pipelines.defs.resources import Catalog, Kafka, Postgres
from pulse_pipelines.monitoring.checks import CHECKS, Inspection, Scope
from pulse_pipelines.registry import Family
from pulse_resources.settings import load_settings

PROVEN = 10
"""Tenants reconciled offset by offset per run, chosen at random so that all are covered over time."""


@dg.op(
    description="Run every check on every dataset, the least recently checked ones first, until the time "
    "is up (setting `checks.budget_seconds`). Evaluations appear on the assets.",
    tags={"kind": "iceberg"},
)
def check_datasets(
    context: dg.OpExecutionContext, catalog: Catalog, kafka: Kafka, postgres: Postgres
) -> None:
    until = time.monotonic() + load_settings().checks.budget_seconds
    families = registry.list_families()
    done = 0
    for result in evaluations(context.instance, families, until):
        context.log_event(result)  # type: ignore[arg-type] # any user event is taken
        done += 1
    checked = done // len(CHECKS)
    context.add_output_metadata({"slugs_checked": checked, "slugs_left": len(families) - checked})


def evaluations(
    instance: dg.DagsterInstance, families: Sequence[Family], until: float
) -> Iterator[dg.AssetCheckEvaluation]:
    """Run all checks of the families in turn, until `time.monotonic()` reaches `until`."""
    before = latest_evaluations(instance, [family.slug for family in families])
    turn = sorted(families, key=lambda family: before[family.slug, CHECKS[0]].whole_at or 0.0)
    tenants = list({member.tenant for family in families for member in family.members})
    inspection = Inspection(
        Scope(max_files=load_settings().checks.max_files),
        prove=random.sample(tenants, min(PROVEN, len(tenants))),
    )
    for family in turn:
        if time.monotonic() > until:
            return
        summaries = inspection.of(family.slug, [member.tenant for member in family.members])
        for name, summary in summaries.items():
            yield evaluation(family.slug, name, summary)


@dg.job(
    description="Checks of the whole lake. Launched by the schedule `check_lake_hourly`; launch it by hand "
    "after a repair.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "check_lake"},
)
def check_lake() -> None:
    check_datasets()


@dg.schedule(
    job=check_lake,
    cron_schedule="23 * * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every hour: all checks of all datasets. Skips until the run before it has ended.",
)
def check_lake_hourly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    going_on = unfinished(context.instance, check_lake)
    return dg.SkipReason("the run before it has not ended") if going_on else dg.RunRequest()
