"""Issues from failed runs that have not been repeated successfully."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg

from pulse_pipelines.defs.alerts.deleted_assets import DeletedAssets
from pulse_pipelines.ingest.attempts import OpenBatch
from pulse_pipelines.monitoring.issues import Issue, Kind, brief
from pulse_resources.settings import load_settings

MOST = 100
"""Maximum number of failed runs considered per evaluation, latest first."""
LATER = 20
"""Successful runs of the same job that are searched for a repetition."""


def failed_runs(
    instance: dg.DagsterInstance, batches: Iterable[OpenBatch], now: datetime | None = None
) -> Iterator[Issue]:
    """One issue per job and subject that failed within `alerts.failed_run_hours` and has not succeeded since.

    A failed run is not an issue if its pipe or dataset was deleted since: no run could succeed.

    A run of `ingest` is a warning while its batch has attempts left: a settled batch is not an issue, and a
    stuck one is an issue of its own.
    """
    since = (now or datetime.now(UTC)) - timedelta(hours=load_settings().alerts.failed_run_hours)
    waiting = {batch.batch_id: batch for batch in batches if not batch.stuck}
    failures = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since)
    subjects: set[str] = set()
    deleted = DeletedAssets()
    for record in instance.get_run_records(failures, limit=MOST):
        run = record.dagster_run
        batch_id = run.tags.get("pulse/batch")
        subject = f"batch {batch_id}" if batch_id else _subject(run)
        if subject in subjects:
            continue
        subjects.add(subject)
        if batch_id is None:
            if not deleted.all_of(record) and not _repeated(instance, record):
                yield _failed(instance, record)
        elif batch := waiting.get(batch_id):
            yield _failed_attempt(run, batch)


def _subject(run: dg.DagsterRun) -> str:
    """Subject of a run: another run of the same subject is its repetition."""
    assets = sorted(key.to_user_string() for key in run.asset_selection or ())
    scope = (run.tags.get("pulse/tenant"), run.tags.get("dagster/partition"), ",".join(assets))
    return "/".join([run.job_name, *(part for part in scope if part)])


def _repeated(instance: dg.DagsterInstance, failed: dg.RunRecord) -> bool:
    run = failed.dagster_run
    later = dg.RunsFilter(
        job_name=run.job_name,
        statuses=[dg.DagsterRunStatus.SUCCESS],
        updated_after=failed.update_timestamp,
        tags={key: run.tags[key] for key in ("pulse/tenant", "dagster/partition") if key in run.tags},
    )
    run_records = instance.get_run_records(later, limit=LATER)
    return any(_subject(record.dagster_run) == _subject(run) for record in run_records)


def _failed(instance: dg.DagsterInstance, record: dg.RunRecord) -> Issue:
    run = record.dagster_run
    return Issue(
        Kind.RUN_FAILED,
        _subject(run),
        "error",
        brief(f"a run of {_title(run)} failed: {_cause(instance, run.run_id)}"),
        f"Look at it at {_address(run.run_id)}; remove the cause and launch it again from there",
        _about(run),
    )


def _failed_attempt(run: dg.DagsterRun, batch: OpenBatch) -> Issue:
    return Issue(
        Kind.RUN_FAILED,
        f"batch {batch.batch_id}",
        "warning",
        brief(f"batch {batch.batch_id}: a run failed: {batch.last_error or 'its process died'}"),
        f"Attempt {batch.attempt} follows by itself; the failed run is at {_address(run.run_id)}",
        _about(run) | {"batch": batch.batch_id},
    )


def _about(run: dg.DagsterRun) -> dict[str, str]:
    named = {"tenant": "pulse/tenant", "partition": "dagster/partition"}
    tags = {name: run.tags[key] for name, key in named.items() if key in run.tags}
    return {"job": run.job_name, "run": run.run_id} | tags


def _title(run: dg.DagsterRun) -> str:
    assets = ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))
    partition = run.tags.get("dagster/partition")
    return (assets or run.job_name) + (f", partition {partition}" if partition else "")


def _cause(instance: dg.DagsterInstance, run_id: str) -> str:
    """Message of the step that failed first, or of the run if no step did."""
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    for record in instance.get_records_for_run(run_id, of_type=kinds, limit=1).records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.is_step_failure:
            error = event.step_failure_data.error
            cause = error.cause if error else None
            return (cause or error).message if error else ""
        return record.event_log_entry.message
    return "its process died"


def _address(run_id: str) -> str:
    return f"{load_settings().dagster.linked_url}/runs/{run_id}"
