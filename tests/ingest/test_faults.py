"""A run that dies, stops, or loses an answer or a race: nothing is lost, nothing doubled.

Killing it at each of its steps is `test_chaos`.
"""

import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import dagster as dg
import psycopg
import pyarrow as pa
import pytest
from support.faults import AtPoint
from support.ingest import (
    Owner,
    event,
    ingest,
    make_owner,
    next_attempt,
    plan_batch,
    run_batch,
    start_attempt,
)
from support.lake import spark

from chaos.surroundings import superuser, with_settings
from chaos.waiting import wait
from pulse_pipelines.defs.ingest.sensor import ingest_lag
from pulse_pipelines.ingest import attempts
from pulse_pipelines.ingest.attempts import OpenBatch
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Fenced
from pulse_resources.local import processes
from pulse_resources.settings import Settings, load_settings

EVENTS = (event("a", count=1), b"not json", event("b"), event("a", count=2), event("c", country=5))


def content(owner: Owner) -> list[tuple[object, ...]]:
    """The table without what names the attempt: the batch is derived from the tenant's id."""
    columns = ("id", "timestamp", "country", "count", "_kafka_partition", "_offset", "_extra")
    return [tuple(row[name] for name in columns) for row in owner.rows()]


def test_two_runs_of_one_attempt_land_once(owner: Owner) -> None:
    owner.send(*EVENTS)
    batch = plan_batch([owner])
    runs = [start_attempt(batch), start_attempt(batch)]
    codes = []
    for run in runs:
        codes.append(run.ended())
        assert codes[-1] == 0 or "another attempt owns this batch" in run.said, run.said
    assert 0 in codes
    assert reconcile_tenant(owner.tenant).balanced
    assert len(owner.rows()) == 2


def test_a_stopped_run_whose_batch_was_taken_over_is_fenced(owner: Owner) -> None:
    """SIGSTOP, another attempt settles, SIGCONT: the first must not land a second time."""
    owner.send(*EVENTS)
    batch = plan_batch([owner])
    slow = start_attempt(batch, PULSE_FAIL_POINT="stop:after.land")
    slow.stopped()
    # Its lease is still held by the stopped process, as by one behind a cut network: the server
    # ends such a session when its keep-alives fail; here an operator does.
    end_sessions(f"pulse-batch/{batch}")
    attempts.next_attempt(batch, 1, "the run does not answer")
    run_batch(batch, 2)
    before = content(owner)
    assert slow.goes_on() != 0
    assert Fenced.__name__ in slow.said
    assert content(owner) == before
    assert reconcile_tenant(owner.tenant).balanced


def test_a_lost_answer_to_commit_is_read_from_the_ledger(owner: Owner, at: AtPoint) -> None:
    owner.send(*EVENTS)
    batch = plan_batch([owner])

    def cut() -> None:
        raise psycopg.OperationalError("the connection was lost")

    at("settle.after_commit", cut)
    run_batch(batch)
    assert batch not in {b.batch_id for b in attempts.open_batches()}
    assert reconcile_tenant(owner.tenant).balanced
    assert len(owner.rows()) == 2


def test_a_swap_lost_to_another_writer_is_restaged(owner: Owner, at: AtPoint) -> None:
    """Compaction, say, commits to the table between land and settle."""
    owner.send(event("z"))
    ingest(owner)
    owner.send(*EVENTS)
    batch = plan_batch([owner])
    name = (owner.tenant.namespace, "orders")

    def other_writer() -> None:
        with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
            old = iceberg.current_location(connection, name)
            table = iceberg.load_table(name, old)
            with table.transaction() as transaction:
                transaction.set_properties({"touched": "yes"})
            assert iceberg.swap(connection, name, old, table.metadata_location)

    done = at("settle.before_swap", other_writer)
    run_batch(batch)
    assert done
    assert [row["id"] for row in owner.rows()] == ["z", "a", "b"]
    assert reconcile_tenant(owner.tenant).balanced


def stick(owner: Owner) -> str:
    """A batch that failed as often as one may."""
    owner.send(event("a"))
    batch = plan_batch([owner])
    for attempt in range(1, load_settings().ingest.max_attempts + 1):
        attempts.next_attempt(batch, attempt, "no luck")
    open_batch = still_open(batch)
    assert (open_batch.state, open_batch.ready, open_batch.stuck, open_batch.last_error) == (
        "stuck",
        False,
        True,
        "no luck",
    )
    return batch


def still_open(batch: str) -> OpenBatch:
    return next(b for b in attempts.open_batches() if b.batch_id == batch)


def test_an_operator_tries_a_stuck_batch_again_at_once(owner: Owner) -> None:
    batch = stick(owner)
    assert attempts.unstick(batch)
    run_batch(batch, 6)
    assert len(owner.rows()) == 1


def test_a_stuck_batch_is_tried_again_without_an_operator(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage that outlasts all attempts ends by itself; it stays an alert until the batch settles."""
    with with_settings(INGEST__STUCK_RETRY_SECONDS=3_600):
        batch = stick(owner)
        assert batch not in launched()
    later = "UPDATE ingest_batches SET not_before = not_before - interval '1 hour' WHERE batch_id = %s"
    with with_settings(INGEST__STUCK_RETRY_SECONDS=1.0), superuser() as connection:
        connection.execute(later, [batch])
        assert launched()[batch] == "6"
        again = still_open(batch)
        assert (again.state, again.attempt, again.stuck) == ("planned", 6, True)
        attempts.next_attempt(batch, 6, "still no luck")
        assert still_open(batch).state == "stuck"
        wait(lambda: launched().get(batch) == "7", "it is not tried again")
    run_batch(batch, 7)
    assert len(owner.rows()) == 1


def test_an_attempt_that_hangs_is_killed_and_followed_by_the_next(owner: Owner) -> None:
    owner.send(*EVENTS)
    batch = plan_batch([owner])
    with superuser() as connection, connection.transaction():
        lock = "SELECT FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s FOR UPDATE"
        connection.execute(lock, [owner.tenant.namespace])
        hanging = start_attempt(batch, PULSE_INGEST__ATTEMPT_SECONDS="8")
        hanging.killed()
    assert f"attempt 1 at batch {batch} hangs" in hanging.said
    run_batch(batch, next_attempt(batch))
    assert [row["id"] for row in owner.rows()] == ["a", "b"]
    assert reconcile_tenant(owner.tenant).balanced


def launched() -> dict[str, str]:
    """The attempts that a tick of the sensor launches, by batch."""
    with dg.DagsterInstance.ephemeral() as instance:
        result = ingest_lag(dg.build_sensor_context(instance=instance))
    assert isinstance(result, dg.SensorResult)
    return {r.tags["pulse/batch"]: r.tags["pulse/attempt"] for r in result.run_requests or ()}


@pytest.mark.parametrize("attempt", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_tenant_that_cannot_be_conformed_holds_up_no_other(attempt: int, stack: Settings) -> None:
    broken, healthy = make_owner(), make_owner()
    broken.send(*EVENTS)
    healthy.send(*EVENTS)
    batch = plan_batch([broken, healthy])
    for number in range(1, attempt):
        attempts.next_attempt(batch, number, "for the test")
    published = set_table_schema(broken, "not JSON")
    assert not run_batch(batch, attempt, raise_on_error=False)
    assert len(healthy.rows()) == 2
    assert reconcile_tenant(healthy.tenant).balanced
    assert reconcile_tenant(broken.tenant).drained == 0
    set_table_schema(broken, published)
    run_batch(batch, attempt + 1)
    assert len(broken.rows()) == len(healthy.rows()) == 2
    assert reconcile_tenant(broken.tenant).balanced


def set_table_schema(owner: Owner, table_schema: str) -> str:
    """Change what the registry says of the table as only a superuser can; returns what it was."""
    with superuser() as connection:
        where = [owner.tenant.tenant_id]
        query = "SELECT table_schema FROM pdm_datasets WHERE tenant_id = %s"
        (before,) = connection.execute(query, where).fetchone()
        change = "UPDATE pdm_datasets SET table_schema = %s WHERE tenant_id = %s"
        connection.execute(change, [table_schema, *where])
    return before


def end_sessions(application: str) -> None:
    with superuser() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            [application],
        )


def test_spark_deletes_the_folder_of_a_session_that_was_quiet_for_long(owner: Owner) -> None:
    """New workers begin there all the same: the next batch must not mind."""
    owner.send(event("a"))
    ingest(owner)

    def daemon(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    (row,) = spark().range(0, 1, 1, 1).mapInArrow(daemon, "pid long").collect()
    folder = Path(f"/proc/{row.pid}/cwd").readlink()
    shutil.rmtree(folder, ignore_errors=True)  # gone already, where the stack is an old one
    root = processes.ProcessId.of(row.pid)
    assert root
    for worker in processes.family(root, processes.table()) - {row.pid}:
        os.kill(worker, signal.SIGKILL)
    owner.send(event("b"))
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["a", "b"]
