"""Carry needs out, table by table, within a time budget; what one run does not get to is first in the next.

A table that another rewrite works on is left to the next run. A failure of one table holds up no other.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.lake.upkeep import compact, expire, history, state, sweep
from pulse_pipelines.lake.upkeep.history import Done
from pulse_pipelines.lake.upkeep.needs import Need, Task, by_table
from pulse_pipelines.stages import datasets, rewrite
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
    for table in by_table(needs):
        if time.monotonic() > until:
            return
        try:
            with rewrite.lease(table[0].dataset_id):
                yield from _table(session, table, run_id, until)
        except Transient as error:
            yield _skipped(table[0], run_id, error)


def _table(session: Session, needs: list[Need], run_id: str | None, until: float) -> Iterator[Done]:
    """The tasks of one table, whose lease is held."""
    first = needs[0]
    dataset = _dataset(first)
    if dataset is None:  # it was deleted since
        return
    order = list(Task)
    swept = False
    for need in sorted(needs, key=lambda n: (order.index(n.task), n.day is None, n.day)):
        if time.monotonic() > until:
            break
        done = Done(need.tenant.slug, need.slug, need.day, need.task, need.reason, run_id=run_id)
        try:
            with history.recorded(need.tenant, need.dataset_id, done):
                _do(session, need, dataset, done)
        except (PulseError, PySparkException, OSError, psycopg.Error):
            yield done  # it says what went wrong; what comes after would meet the same table
            return
        yield done
        swept = swept or need.task is Task.SWEEP
    state.save_table(first.tenant, dataset, swept=swept)


def _do(session: Session, need: Need, dataset: Dataset, done: Done) -> None:
    tenant = need.tenant
    match need.task, need.day:
        case Task.MERGE, day if day:
            compact.merge(session(), tenant, dataset, day, done)
        case Task.SORT, day if day:
            compact.sort(session(), tenant, dataset, day, done)
        case Task.MANIFESTS, _:
            compact.rewrite_manifests(session(), tenant, dataset, done)
        case Task.EXPIRE, _:
            expire.expire(tenant, dataset, done)
        case Task.SWEEP, _:
            _sweep(session, need, dataset, done)


def _sweep(session: Session, need: Need, dataset: Dataset, done: Done) -> None:
    if history.recently_abandoned(need.tenant, dataset.dataset_id):
        session().interruptTag(compact.tag(dataset))
        raise Transient(
            "a process died at this table a moment ago, and Spark may still be at work for it",
            fix=f"It is swept {history.PATIENCE_MINUTES} minutes later",
            tenant=need.tenant.slug,
            dataset=dataset.slug,
        )
    min_age = timedelta(hours=load_settings().upkeep.orphan_hours)
    sweep.sweep(need.tenant, dataset, done, min_age=min_age)


def _dataset(need: Need) -> Dataset | None:
    with postgres.tenant_transaction("pulse_pipeline", need.tenant.tenant_id) as connection:
        found = list(datasets.read(connection, "d.dataset_id = %s", [need.dataset_id]))
    return found[0] if found else None


def _skipped(need: Need, run_id: str | None, error: Transient) -> Done:
    return Done(
        need.tenant.slug, need.slug, need.day, need.task, need.reason, "skipped", error.message, run_id=run_id
    )
