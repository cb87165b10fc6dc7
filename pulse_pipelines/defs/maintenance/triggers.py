"""Triggers of upkeep: a sensor for tables that need it, and a daily schedule over all tables."""

from collections import Counter

import dagster as dg

from pulse_pipelines.defs.launches import unfinished
from pulse_pipelines.defs.maintenance.job import upkeep
from pulse_pipelines.maintenance.policy import needs
from pulse_pipelines.tables import store_mark


@dg.sensor(
    job=upkeep,
    minimum_interval_seconds=300,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Asks the ledger every five minutes which tables need upkeep, looking at what landed lately, "
    "and launches the job `upkeep` when one does. What a run would do now: `pulse upkeep --plan`.",
)
def upkeep_needed(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    if (why := _reason_to_wait(context.instance)) is not None:
        return dg.SkipReason(why)
    task_counts = Counter(need.task for need in needs(recent=True, patient=True))
    if not task_counts:
        return dg.SkipReason("no table needs upkeep")
    context.log.info("upkeep is needed: %s", ", ".join(f"{task} {n}" for task, n in task_counts.items()))
    return dg.RunRequest(run_config=_config(recent=True))


@dg.schedule(
    job=upkeep,
    cron_schedule="7 2 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night (02:07 UTC): upkeep of all tables, also of those where nothing landed lately. "
    "Skips until the run before it has ended.",
)
def upkeep_daily(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    if (why := _reason_to_wait(context.instance)) is not None:
        return dg.SkipReason(why)
    return dg.RunRequest(run_config=_config(recent=False))


def _reason_to_wait(instance: dg.DagsterInstance) -> str | None:
    """Why no run may begin now; None: one may."""
    if unfinished(instance, upkeep):
        return "the run before it has not ended"
    restored = store_mark.compare()
    return None if restored is None else f"{restored.sentence}: see `pulse restore`"


def _config(*, recent: bool) -> dict[str, object]:
    return {"ops": {"run_maintenance": {"config": {"recent": recent}}}}
