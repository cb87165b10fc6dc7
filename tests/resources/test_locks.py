"""Advisory locks of sessions."""

import uuid
from typing import Any

import psycopg
import pytest

from chaos.waiting import PATIENCE_S
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import Settings


def test_a_lock_is_free_before_its_connection_is_closed(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server ends a session, and frees its locks, some time after that."""
    of, free = uuid.uuid4(), list[bool]()
    close = psycopg.Connection.close

    def closing(connection: "psycopg.Connection[Any]") -> None:
        monkeypatch.undo()
        with locks.session(Lock.PIPE, of) as again:
            free.append(again is not None)
        close(connection)

    with locks.session(Lock.PIPE, of) as session:
        assert session is not None
        monkeypatch.setattr(psycopg.Connection, "close", closing)
    assert free == [True]


def test_a_held_lock_is_not_given_to_another_session(stack: Settings) -> None:
    of = uuid.uuid4()
    with locks.session(Lock.PIPE, of) as session:
        assert session is not None
        for _ in range(2):
            with locks.session(Lock.PIPE, of) as other:
                assert other is None


def test_a_lost_connection_hides_no_error(stack: Settings) -> None:
    """The lock is lost with its session: what the block raised is what its caller sees."""
    of = uuid.uuid4()

    def lost() -> None:
        with locks.session(Lock.PIPE, of) as session:
            assert session is not None
            session.close()
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        lost()
    with locks.session(Lock.PIPE, of, wait_seconds=PATIENCE_S) as again:
        assert again is not None
