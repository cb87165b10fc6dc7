"""A Postgres that stands still: who asks through the front doors is told, instead of waiting for ever."""

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from support.http import Caller
from support.pauses import paused

from chaos.waiting import PATIENCE_S
from pulse_resources import postgres
from pulse_resources.postgres import watched_connection
from pulse_resources.settings import Settings


def test_a_request_ends_while_postgres_stands_still(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for as long as Postgres did; TCP sees nothing, since the kernel goes on acknowledging."""
    assert caller.http.get("/v1/datasets").status_code == 200
    with monkeypatch.context() as impatient, paused("postgres"):
        impatient.setattr(watched_connection, "SILENCE_S", 0.5)
        answer = caller.http.get("/v1/datasets", timeout=PATIENCE_S)
        assert answer.status_code == 503, answer.text
        assert "Postgres" in answer.json()["detail"]
        assert caller.http.get("/readyz").status_code == 503
    assert caller.http.get("/v1/datasets").status_code == 200


def test_a_statement_that_is_slow_is_waited_for(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_connection, "SILENCE_S", 0.2)
    with postgres.transaction("pulse_api") as connection:
        assert connection.execute("SELECT pg_sleep(1), 1").fetchone() == ("", 1)


def test_a_connection_that_was_given_up_is_not_lent_again(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_connection, "SILENCE_S", 0.2)
    with (
        pytest.raises(psycopg.OperationalError, match="does not answer"),
        postgres.transaction("pulse_api") as connection,
        paused("postgres"),
    ):
        connection.execute("SELECT 1")
    assert connection.closed
    with postgres.transaction("pulse_api") as another:
        assert another.execute("SELECT 1").fetchone() == (1,)


def test_a_pool_that_is_made_while_others_are_closed_stays_open(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of one test made it while a command closed the pools at its end; all that followed failed."""

    class Slow(ConnectionPool[postgres.Connection]):
        def close(self, timeout: float = 5.0) -> None:
            postgres.pool("pulse_api")
            super().close(timeout)

    postgres.close_pools()
    with monkeypatch.context() as patched:
        patched.setattr(postgres, "ConnectionPool", Slow)
        postgres.pool("pulse_owner")
    postgres.close_pools()
    with postgres.transaction("pulse_api") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
