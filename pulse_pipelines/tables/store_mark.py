"""The store mark: a random value that Postgres and the object store share, renewed every minute.

After one of the two was restored from a backup, their marks differ. Until an operator accepts that
(`pulse restore`), no upkeep runs and no orphan is removed: a file that the database does not know may be the
only copy of rows. A restore is not noticed if the mark was not renewed between the backup and the failure.
"""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from pulse_resources import object_store, postgres
from pulse_resources.errors import Terminal, Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

READ = "SELECT mark, previous, marked_at FROM store_mark"
WRITE = """
INSERT INTO store_mark (mark, previous) VALUES (%(mark)s, %(previous)s)
ON CONFLICT (one) DO UPDATE SET mark = excluded.mark, previous = excluded.previous, marked_at = now()
"""
WAIT_S = 60.0
"""Seconds that a renewal waits for another one to end."""
FIX = (
    "Upkeep is held. `pulse restore check` names what differs, `pulse restore repair` mends what it can, and "
    "`pulse restore accept` ends the hold"
)


class _Row(NamedTuple):
    mark: uuid.UUID
    previous: uuid.UUID
    marked_at: datetime


class _Object(NamedTuple):
    """The mark in the object store; None: the object holds something else."""

    mark: uuid.UUID | None
    marked_at: datetime | None


@dataclass(frozen=True)
class Restored:
    """Postgres and the object store are of different times; None: that one has no mark."""

    postgres_at: datetime | None
    store_at: datetime | None
    damaged: str | None = None
    """The object store's mark, if it cannot be read: neither restore is known."""

    @property
    def sentence(self) -> str:
        """Which of the two was restored, and to when."""
        if self.damaged is not None:
            return (
                f"{self.damaged} holds no mark: whether Postgres or the object store was restored is unknown"
            )
        if self.postgres_at is None:
            return f"Postgres is new, and the object store is of {self.store_at:%Y-%m-%d %H:%M:%S} UTC"
        if self.store_at is None:
            return f"the object store is new, and Postgres is of {self.postgres_at:%Y-%m-%d %H:%M:%S} UTC"
        older = "Postgres" if self.postgres_at < self.store_at else "the object store"
        first, last = sorted((self.postgres_at, self.store_at))
        return (
            f"{older} was restored: it is of {first:%Y-%m-%d %H:%M:%S}, "
            f"the other of {last:%Y-%m-%d %H:%M:%S} UTC"
        )


def compare() -> Restored | None:
    """Compare the two marks; None: they agree, or neither has ever been written.

    Raises:
        OSError: the object store failed.
        psycopg.OperationalError: Postgres failed.
    """
    stored = _read_object()  # first: the row is written before the object
    return _difference(_read_row(), stored)


def check() -> None:
    """Check that the marks agree.

    Raises:
        Terminal: one of the two was restored, and no operator has accepted it yet.
        OSError, psycopg.OperationalError: as `compare`.
    """
    if (restored := compare()) is not None:
        raise Terminal(restored.sentence, fix=FIX)


def renew() -> Restored | None:
    """Write a new mark to both if they agree; otherwise return how they differ.

    Raises:
        Transient: another renewal does not end.
        OSError, psycopg.OperationalError: as `compare`.
    """
    return _renew(accepted=False)


def accept() -> None:
    """Write a new mark to both, whether or not they agree: upkeep continues. Raises as `renew`."""
    _renew(accepted=True)


def _renew(*, accepted: bool) -> Restored | None:
    with locks.session(Lock.STORE_MARK, "store", wait_seconds=WAIT_S) as is_locked:
        if not is_locked:
            raise Transient("another process renews the store mark", fix="Try again")
        stored, mark = _read_object(), uuid.uuid4()
        if not accepted and (restored := _difference(_read_row(), stored)) is not None:
            return restored
        previous = stored.mark if stored is not None and stored.mark is not None else mark
        with postgres.transaction("pulse_pipeline") as connection:
            connection.execute(WRITE, {"mark": mark, "previous": previous})
        fail_point("store_mark.written")
        written = {"mark": str(mark), "marked_at": datetime.now(UTC).isoformat()}
        object_store.put(_path(), orjson.dumps(written))
    return None


def _difference(row: _Row | None, stored: _Object | None) -> Restored | None:
    if row is None and stored is None:
        return None
    if row is not None and stored is not None and stored.mark in (row.mark, row.previous):
        return None
    if row is not None and stored is None and row.mark == row.previous:
        return None  # the process that wrote the first mark died before it wrote the object
    damaged = _path() if stored is not None and stored.mark is None else None
    return Restored(row and row.marked_at, stored and stored.marked_at, damaged)


def _read_row() -> _Row | None:
    with postgres.transaction("pulse_pipeline") as connection:
        row = connection.execute(READ).fetchone()
    return None if row is None else _Row(*row)


def _content() -> bytes | None:
    try:
        with object_store.file_system().open_input_stream(object_store.key(_path())) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def _read_object() -> _Object | None:
    if (content := _content()) is None:
        return None
    try:
        values = orjson.loads(content)
        mark, marked_at = uuid.UUID(values["mark"]), datetime.fromisoformat(values["marked_at"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return _Object(None, None)
    return _Object(mark, marked_at) if marked_at.tzinfo is not None else _Object(None, None)


def _path() -> str:
    return f"s3://{load_settings().object_store.bucket}/upkeep/mark.json"
