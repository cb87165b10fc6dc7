"""Maintenance runs: carry out needed tasks, table by table, within a time budget.

Tasks that do not fit come first in the next run: what has accumulated, or waited, most goes first. A table
whose lease another rewrite holds is left to the next run. A failure of one table does not delay the others.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date, timedelta
from uuid import UUID

from pulse_pipelines.claims import merge_claims
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.priority import GiveWay
from pulse_pipelines.maintenance import (
    ancestry,
    compact,
    expire_snapshots,
    history,
    own_tables,
    remove_orphan_files,
    retention,
    state,
)
from pulse_pipelines.maintenance.history import Done, Skipped
from pulse_pipelines.maintenance.policy import Need, by_table
from pulse_pipelines.maintenance.rewrite import Session
from pulse_pipelines.registry import failed_work
from pulse_pipelines.registry.failed_work import Failed
from pulse_pipelines.states import window_build
from pulse_pipelines.tables import dataset_rows, leases, store_mark
from pulse_resources import outages, postgres
from pulse_resources.errors import Transient
from pulse_resources.iceberg import readable
from pulse_resources.settings import load_settings

OF_SPARK = (Task.MERGE, Task.SORT, Task.MANIFESTS)


@dataclass(frozen=True)
class RunTime:
    """Time of a run."""

    until: float
    """No task begins after it; by `time.monotonic`."""
    share_s: float
    """What is left, divided among the tenants whose own tables have not had their turn."""


def run(session: Session, needs: Iterable[Need], *, run_id: str | None, seconds: float) -> Iterator[Done]:
    """Carry out the tasks in the order given; yields each one when it ends.

    Every failure is recorded (`failed_work`), and the run continues with the next table.

    Args:
        seconds: no task begins after this long.

    Raises:
        Terminal: Postgres or the object store was restored (see `store_mark`); nothing was done.
        Transient: a task failed because the object store or Spark does not answer.
    """
    store_mark.check()
    until = time.monotonic() + seconds
    pause = GiveWay()
    tables = by_table(needs)
    pending = sum(_lake_tasks(together) for together in tables)
    for together in tables:
        pause()
        if (remaining := until - time.monotonic()) < 0:
            return
        run_time = RunTime(until, remaining / max(1, pending))
        pending -= _lake_tasks(together)
        for done in _run_table(session, together, run_id, run_time):
            yield done
            if done.outcome == "failed":
                outages.check(session() if done.task in OF_SPARK else None)


def _lake_tasks(needs: list[Need]) -> int:
    return sum(need.task is Task.TENANT_TABLES for need in needs)


def _run_table(session: Session, needs: list[Need], run_id: str | None, run_time: RunTime) -> Iterator[Done]:
    """Run the tasks of one table, or of one tenant; skipped while another rewrite holds the lease."""
    dataset_id = needs[0].dataset_id
    lease = nullcontext() if dataset_id is None else leases.rewriting(dataset_id)
    began = False
    try:
        with lease:
            began = True
            yield from _run_tasks(session, needs, dataset_id, run_id, run_time)
    except Exception as error:  # raised outside a task: failures of tasks are recorded by then
        if isinstance(error, Transient) and not began:
            yield replace(_done(needs[0], run_id), outcome="skipped", detail=error.message)
        else:
            yield _failed(needs[0], replace(_done(needs[0], run_id), outcome="failed"), error)


def _run_tasks(
    session: Session, needs: list[Need], dataset_id: UUID | None, run_id: str | None, run_time: RunTime
) -> Iterator[Done]:
    """Run the tasks of one table, whose lease is held, or of one tenant."""
    tenant = needs[0].tenant
    dataset = None if dataset_id is None else _dataset(tenant, dataset_id)
    if dataset is None and dataset_id is not None:  # the dataset was deleted
        return
    order = list(Task)
    changed = orphans_removed = False
    for need in sorted(needs, key=lambda n: (n.failures, order.index(n.task), str(n.day))):
        if time.monotonic() > run_time.until:
            break
        done = _done(need, run_id)
        try:
            with history.recorded(tenant, dataset_id, done):
                if dataset is None:
                    _of_tenant(need, done, run_time)
                else:
                    _of_table(session, need, dataset, done)
        except Exception as error:
            yield _failed(need, done, error)
            break  # later tasks would meet the same failure; they come first next time
        if need.failures:
            failed_work.forget(need.work)
        yield done
        changed, orphans_removed = True, orphans_removed or need.task is Task.ORPHANS
    if dataset is not None and changed:
        merge_claims.merge_claims(dataset)
        state.save_table(tenant, dataset, orphans_removed=orphans_removed)


def _failed(need: Need, done: Done, error: Exception) -> Done:
    """The failed task, with its failure recorded unless it was skipped."""
    done.detail = done.detail or f"{type(error).__name__}: {error}"
    if done.outcome != "skipped":
        settings = load_settings().upkeep
        seconds = {"first_s": settings.retry_minutes * 60, "most_s": settings.retry_max_minutes * 60}
        failed_work.note([Failed(need.work, f"{need.task}: {done.detail}")], **seconds)
    return done


def _of_table(session: Session, need: Need, dataset: Dataset, done: Done) -> None:
    tenant = need.tenant
    table = ancestry.verified(tenant, dataset)  # a rolled-back table is left as it is for an operator
    if need.task in OF_SPARK:
        readable.check_snapshot(table)
    match need.task, need.day:
        case Task.WINDOWS, _:
            window_build.build(tenant, dataset.slug)
        case Task.MERGE, date() as day:
            compact.merge(session(), tenant, dataset, day, done)
        case Task.SORT, date() as day:
            compact.sort(session(), tenant, dataset, day, done)
        case Task.MANIFESTS, _:
            compact.rewrite_manifests(session(), tenant, dataset, done)
        case Task.EXPIRE, _:
            expire_snapshots.expire(tenant, dataset, done)
        case Task.ORPHANS, _:
            _remove_orphans(session, tenant, dataset, done)


def _of_tenant(need: Need, done: Done, run_time: RunTime) -> None:
    began = state.database_time()
    match need.task:
        case Task.RAW:
            retention.remove_orphans(need.tenant, need.since, done)
            state.save_tenant(need.tenant, cleaned_at=began)
        case Task.RETENTION:
            retention.retain(need.tenant, done)
            state.save_tenant(need.tenant, retained_at=began)
        case Task.TENANT_TABLES:
            own_tables.keep(need.tenant, done, run_time.share_s)
            state.save_tenant(need.tenant, tidied_at=began)


def _remove_orphans(session: Session, tenant: Tenant, dataset: Dataset, done: Done) -> None:
    try:
        history.check_none_abandoned(tenant, dataset)
    except Skipped:
        session().interruptTag(compact.tag(dataset))
        raise
    min_age = timedelta(hours=load_settings().upkeep.orphan_hours)
    remove_orphan_files.remove_orphan_files(tenant, dataset, done, min_age=min_age)


def _dataset(tenant: Tenant, dataset_id: UUID) -> Dataset | None:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        rows = list(dataset_rows.read(connection, "d.dataset_id = %s", [dataset_id]))
    return rows[0] if rows else None


def _done(need: Need, run_id: str | None) -> Done:
    return Done(need.tenant.slug, need.slug, need.day, need.task.value, need.reason, run_id=run_id)
