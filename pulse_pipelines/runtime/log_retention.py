"""Retention of run and tick logs: output of each step and tick, by `dagster.log_days`.

Dagster's own retention (`dagster_home/dagster.yaml`) removes ticks only. The record of a run is kept: its
events are the materializations that an asset's page shows.
"""

import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import dagster as dg
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager

from pulse_resources.settings import load_settings

DAY_S = 86_400
SUFFIXES = (".out", ".err", ".complete")
"""Suffixes of log files: `<run>/compute_logs/<step>`, or `<repository>/<sensor>/<tick>`, and one of these."""


@dg.op(
    description="Remove logs of runs (standard output and error) and of ticks that were last written to "
    "more than `dagster.log_days` days ago. Events and materializations of the runs stay."
)
def remove_logs(context: dg.OpExecutionContext) -> None:
    manager = context.instance.compute_log_manager
    if not isinstance(manager, LocalComputeLogManager):
        context.log.info("Logs are kept in %s, which has a retention of its own", type(manager).__name__)
        return
    removed = remove(manager, time.time() - load_settings().dagster.log_days * DAY_S)
    context.add_output_metadata({"logs_removed": removed})


def remove(manager: LocalComputeLogManager, before: float) -> int:
    """Remove logs last written before `before` (seconds of Unix time); returns how many there were."""
    root = Path(manager.get_captured_local_path(("run", "compute_logs", "step"), "out")).parents[2]
    written: dict[tuple[str, str, str], float] = defaultdict(float)
    for path in root.glob("*/*/*"):
        if path.suffix in SUFFIXES:
            key = (path.parts[-3], path.parts[-2], path.stem)
            written[key] = max(written[key], path.stat().st_mtime)
    old = [key for key, last in written.items() if last < before]
    for key in old:
        manager.delete_logs(log_key=key)
        folder = root / key[0] / key[1]
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
            folder.parent.rmdir()
    return len(old)


@dg.job(
    description="Removes logs of runs and ticks that are older than the setting `dagster.log_days`. Launched "
    "by the schedule `remove_old_logs_daily`.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "remove_old_logs"},
)
def remove_old_logs() -> None:
    remove_logs()


remove_old_logs_daily = dg.ScheduleDefinition(
    name="remove_old_logs_daily",
    job=remove_old_logs,
    cron_schedule="41 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every night (03:41 UTC): logs of runs and ticks that are beyond retention.",
)
