"""Carry needs out, table by table, within a time budget; what one run does not get to is first in the next.

A table that another rewrite works on is left to the next run. A failure of one table holds up no other.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, timedelta
from uuid import UUID

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.upkeep import ancestry, compact, expire, history, raw, retention, state, sweep
from pulse_pipelines.lake.upkeep.history import Done
from pulse_pipelines.lake.upkeep.needs import Need, Task, by_table
from pulse_pipelines.stages import datasets, rewrite
from pulse_pipelines.stages.aside import Aside
from pulse_resources import postgres
from pulse_resources.errors import PulseError, Transient
from pulse_resources.settings import load_settings

Session = Callable[[], SparkSession]
"""Gives the Spark session when it is needed: expiry and sweeps are not worth connecting for."""


def run(session: Session, needs: Iterable[Need], *, run_id: str | None, seconds: float) -> Iterator[Done]:
    """Do what tables want, the tables in the order given; yields each task as it ended.

    Args:
        seconds: nothing new is begun after this long.
    """
    until = time.monotonic() + seconds
    pause = Aside()
    for together in by_table(needs):
        pause()
        if time.monotonic() > until:
            return
        dataset_id = together[0].dataset_id
        try:
            with nullcontext() if dataset_id is None else rewrite.lease(dataset_id):
                yield from _one_by_one(session, together, dataset_id, run_id, until)
        except Transient as error:
            yield replace(_done(together[0], run_id), outcome="skipped", detail=error.message)


def _one_by_one(
    session: Session, needs: list[Need], dataset_id: UUID | None, run_id: str | None, until: float
) -> Iterator[Done]:
    """The tasks of one table, whose lease is held, or of one tenant."""
    tenant = needs[0].tenant
    dataset = None if dataset_id is None else _dataset(tenant, dataset_id)
    if dataset is None and dataset_id is not None:  # it was deleted since
        return
    order = list(Task)
    swept = False
    for need in sorted(needs, key=lambda n: (order.index(n.task), str(n.day))):
        if time.monotonic() > until:
            break
        done = _done(need, run_id)
        try:
            with history.recorded(tenant, dataset_id, done):
                if dataset is None:
                    _of_tenant(need, done)
                else:
                    _of_table(session, need, dataset, done)
        except (PulseError, PySparkException, OSError, psycopg.Error):
            yield done  # it says what went wrong; what comes after would meet the same
            return
        yield done
        swept = swept or need.task is Task.SWEEP
    if dataset is not None:
        state.save_table(tenant, dataset, swept=swept)


def _of_table(session: Session, need: Need, dataset: Dataset, done: Done) -> None:
    tenant = need.tenant
    ancestry.verified(tenant, dataset)  # a table that lacks commits is for a person to look at, as it is
    match need.task, need.day:
        case Task.MERGE, date() as day:
            compact.merge(session(), tenant, dataset, day, done)
        case Task.SORT, date() as day:
            compact.sort(session(), tenant, dataset, day, done)
        case Task.MANIFESTS, _:
            compact.rewrite_manifests(session(), tenant, dataset, done)
        case Task.EXPIRE, _:
            expire.expire(tenant, dataset, done)
        case Task.SWEEP, _:
            _sweep(session, tenant, dataset, done)


def _of_tenant(need: Need, done: Done) -> None:
    began = state.database_time()
    if need.task is Task.RAW:
        raw.sweep(need.tenant, need.since, done)
    elif need.task is Task.RETENTION:
        retention.retain(need.tenant, done)
    state.save_tenant(need.tenant, **{"swept" if need.task is Task.RAW else "retained": began})


def _sweep(session: Session, tenant: Tenant, dataset: Dataset, done: Done) -> None:
    if history.recently_abandoned(tenant, dataset.dataset_id):
        session().interruptTag(compact.tag(dataset))
        raise Transient(
            "a process died at this table a moment ago, and Spark may still be at work for it",
            fix=f"It is swept {history.PATIENCE_MINUTES} minutes later",
            tenant=tenant.slug,
            dataset=dataset.slug,
        )
    min_age = timedelta(hours=load_settings().upkeep.orphan_hours)
    sweep.sweep(tenant, dataset, done, min_age=min_age)


def _dataset(tenant: Tenant, dataset_id: UUID) -> Dataset | None:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        found = list(datasets.read(connection, "d.dataset_id = %s", [dataset_id]))
    return found[0] if found else None


def _done(need: Need, run_id: str | None) -> Done:
    return Done(need.tenant.slug, need.slug, need.day, need.task.value, need.reason, run_id=run_id)
