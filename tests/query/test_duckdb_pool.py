"""The pool of DuckDB instances: limits that hold, a clear error for each, and no harm to who comes next."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

from chaos.waiting import PATIENCE_S
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.query.duckdb_pool import Limits, connect
from pulse_resources.errors import Transient, UserError
from pulse_resources.store_keys import store_key

pytestmark = pytest.mark.long

ENDLESS = "SELECT count(*) FROM range(1000000000000) t(i) WHERE i % 7 = 3"
LARGE = "SELECT list(i) FROM range(100000000) t(i)"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key of the object store, which these tests never ask for anything."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    store_key.forget()
    yield
    store_key.forget()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """A pool of its own for each test. Its time limit is longer than any test may take."""
    return Limits(request.node.name, memory="100MB", threads=2, instances=1, seconds=3_600)


def mark(limits: Limits) -> None:
    with connect(limits) as connection:
        connection.execute("CREATE TABLE mark (i INTEGER)")


def marked(limits: Limits) -> bool:
    """Whether the next instance to be lent is the one that `mark` had."""
    with connect(limits) as connection:
        return bool(connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'mark'").fetchall())


def test_an_instance_is_used_again_and_has_its_limits(limits: Limits) -> None:
    mark(limits)
    assert marked(limits)
    with connect(limits) as connection:
        names = "('memory_limit', 'threads', 'max_temp_directory_size', 'TimeZone')"
        query = f"SELECT name, value FROM duckdb_settings() WHERE name IN {names}"
        settings = dict(connection.execute(query).fetchall())
    assert settings == {
        "memory_limit": "95.3 MiB",
        "threads": "2",
        "max_temp_directory_size": "0 bytes",
        "TimeZone": "UTC",
    }


def test_a_query_beyond_the_memory_is_refused_and_its_instance_thrown_away(limits: Limits) -> None:
    mark(limits)
    with pytest.raises(UserError, match="more than the 100MB of memory") as caught, connect(limits) as used:
        used.execute(LARGE).to_arrow_table()
    assert "fewer rows" in str(caught.value)
    assert not marked(limits)


def test_a_query_beyond_the_time_is_interrupted_and_its_instance_thrown_away(limits: Limits) -> None:
    mark(limits)
    with (
        pytest.raises(Transient, match="longer than the 3600 s"),
        connect(limits, time.monotonic() + 0.3) as connection,
    ):
        connection.execute(ENDLESS).fetchall()
    assert not marked(limits)


def test_time_that_runs_out_between_two_queries_ends_the_next_one(limits: Limits) -> None:
    def late() -> None:
        with connect(limits, time.monotonic() + 0.1) as connection:
            connection.execute("SELECT 1").fetchall()
            time.sleep(0.3)
            connection.execute(ENDLESS).fetchall()

    with pytest.raises(Transient, match="longer than"):
        late()


def test_a_late_interrupt_does_not_reach_the_next_user(limits: Limits) -> None:
    with connect(limits, time.monotonic() + 0.05):
        time.sleep(0.3)
    for _ in range(20):
        with connect(limits) as connection:
            assert connection.execute("SELECT sum(i) FROM range(1000) t(i)").fetchall() == [(499500,)]


def test_a_caller_of_a_busy_pool_waits_and_gets_an_error(limits: Limits) -> None:
    with connect(limits):
        began = time.monotonic()
        with pytest.raises(Transient, match="are busy: all 1 instances"), connect(limits, began + 0.3):
            pytest.fail("it was lent twice")
        assert time.monotonic() - began > 0.25
    with connect(limits) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_waiting_caller_gets_the_returned_instance(limits: Limits) -> None:
    results: list[bool] = []
    mark(limits)
    waiter = threading.Thread(target=lambda: results.append(marked(limits)))
    with connect(limits):
        waiter.start()
        time.sleep(0.1)
        assert not results
    waiter.join(PATIENCE_S)
    assert results == [True]


def test_failures_do_not_use_the_pool_up(limits: Limits) -> None:
    with pytest.raises(duckdb.CatalogException), connect(limits) as connection:
        connection.execute("SELECT * FROM absent")
    with pytest.raises(KeyError), connect(limits):
        raise KeyError
    with connect(limits) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_two_users_have_two_instances(limits: Limits) -> None:
    two = replace(limits, instances=2)
    duckdb_pool.warm(two)
    with connect(two) as one, connect(two) as other:
        one.execute("CREATE TABLE mine (i INTEGER)")
        with pytest.raises(duckdb.CatalogException):
            other.execute("SELECT * FROM mine")


def test_a_pool_without_a_limit_always_makes_another_instance(limits: Limits) -> None:
    any_number = replace(limits, instances=None, seconds=None)
    with connect(any_number) as a, connect(any_number) as b, connect(any_number) as c:
        assert len({id(a), id(b), id(c)}) == 3
