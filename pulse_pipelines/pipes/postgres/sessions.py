"""Sessions in a source, or a sink: connections, one moment that many share, and the lock that a run holds."""

import re
import socket
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from pulse_resources.errors import PulseError, Transient, UserError

ANSWERS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Unless the connection string says otherwise: a source that vanished does not hold up a run for hours."""
_TELLABLE = re.compile(
    r"FATAL: .*|Connection refused|[Tt]ime(d )?out|Name or service not known|No route to host|"
    r"Network is unreachable|server closed the connection|certificate verify failed|SSL is required"
)
_FORMS = "Write it as postgresql://user:password@host:5432/database; other sources are s3:// or https://"
_REACH = "Compare host, port and password with the source's; Pulse connects from its own machine"
_NAMED = re.compile(r'"[^"]*"')
# Whatever the role, or the database, has as its defaults; those that a server does not know are left out.
# `pg_catalog` comes first in a search path, as it does unless it is named: nothing hides what is called here.
SETTINGS = """
SET statement_timeout = 0;
SELECT pg_catalog.set_config(name, value, false) FROM (VALUES
    ('timezone', 'UTC'), ('datestyle', 'ISO, YMD'), ('intervalstyle', 'iso_8601'), ('bytea_output', 'hex'),
    ('extra_float_digits', '3'), ('xmlbinary', 'base64'), ('quote_all_identifiers', 'off'),
    ('standard_conforming_strings', 'on'), ('array_nulls', 'on'), ('row_security', 'off'),
    ('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
    ('default_transaction_deferrable', 'off'), ('transaction_timeout', '0'),
    ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'), ('lock_timeout', '0'),
    ('search_path', pg_catalog.concat(
        CASE WHEN pg_catalog.strpos(pg_catalog.current_setting('search_path'), 'pg_catalog') > 0
            THEN 'pg_catalog, ' END, pg_catalog.current_setting('search_path')))) s (name, value)
WHERE pg_catalog.current_setting(name, true) IS NOT NULL
"""
"""Settings of each session: the text form of values; an error, where a policy hides rows; no time limits."""
# First exclusive, then shared: no one else has it at that moment, and tasks can join.
ALONE = """
SELECT CASE WHEN pg_try_advisory_lock(hashtextextended(%(key)s, 0))
    THEN pg_try_advisory_lock_shared(hashtextextended(%(key)s, 0))
        AND pg_advisory_unlock(hashtextextended(%(key)s, 0))
    ELSE false END
"""
JOIN = "SELECT pg_advisory_lock_shared(hashtextextended(%(key)s, 0))"


INTERVAL_S = 0.1
"""Within which a wait is interrupted."""
MOST_RECEIVED = 16 * 1024 * 1024
"""Bytes that a server of `within` may send over a connection: the client library keeps all of an answer."""
_RECEIVED = struct.Struct("=128xQ")
"""The count of received bytes in what Linux tells of a TCP connection."""


class _Session(psycopg.Connection[Any]):
    """A connection that ends when a wait for its server is interrupted, or takes more than `within` says."""

    @classmethod
    def _connect_gen(cls, *arguments: Any) -> Any:
        return _metered(super()._connect_gen(*arguments))

    def wait(self, gen: Any, interval: float = INTERVAL_S, timeout: float | None = None) -> Any:
        until = _until.get()
        remaining = timeout if until is None else max(0.0, until - time.monotonic())
        try:
            return super().wait(_metered(gen, self.fileno()), interval, remaining)
        except (psycopg.errors._WaitTimeout, PulseError) as error:
            self.close()  # to roll back would be to wait for the server again
            if isinstance(error, PulseError) or until is None:
                raise
            raise Transient("the source is connected, but does not answer in time") from None


def _metered(work: Generator[Any, Any, Any], descriptor: int | None = None) -> Generator[Any, Any, Any]:
    """What `work` of psycopg waits for, and its result.

    Args:
        descriptor: of the connection; None: `work` connects, and says what it waits for.

    Raises:
        UserError: within `within`, the server sends too much.
    """
    if _until.get() is None:
        return (yield from work)
    try:
        awaited = next(work)
        while True:
            ready = yield awaited
            if _received(awaited[0] if descriptor is None else descriptor) > MOST_RECEIVED:
                raise UserError(
                    f"the source sends more than {MOST_RECEIVED:,} bytes where a few rows were expected",
                    fix="An operator checks what is at its address",
                )
            awaited = work.send(ready)
    except StopIteration as ended:
        return ended.value


def _received(descriptor: int) -> int:
    """Bytes that came over a connection; 0 if it is not of TCP."""
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
        try:
            tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        except OSError:
            return 0
    return int(_RECEIVED.unpack(tcp_info)[0]) if len(tcp_info) == _RECEIVED.size else 0


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the answers of the servers of the block: this many seconds for all, then Transient is raised.

    A connection whose server sends more than `MOST_RECEIVED` raises UserError.
    """
    token = _until.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


_until: ContextVar[float | None] = ContextVar("until", default=None)


@contextmanager
def snapshot(address: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect read-only at REPEATABLE READ: all statements see the source at one moment.

    Raises:
        Transient: it does not answer. The error omits the address.
    """
    with connect(address) as connection:
        freeze(connection)
        yield connection


def freeze(connection: "psycopg.Connection[Any]") -> None:
    """Make the following statements see the source at the moment of the first one."""
    connection.autocommit = False
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True


def begin_alone(connection: "psycopg.Connection[Any]", of: UUID | str) -> None:
    """Hold a pipe in its source, or sink, for as long as this connection lasts.

    A run that died may have left tasks that still send rows, older than what the next run sends: so the
    next one begins once their connections have ended. A lock in Pulse's Postgres would not tell.

    Args:
        of: the dataset that it brings; of a pipe with a sink the pipe.

    Raises:
        Transient: another run, or a task of one, holds it.
    """
    ((alone,),) = connection.execute(ALONE, {"key": f"pulse-pipe/{of}"}).fetchall()
    if not alone:
        raise Transient(
            "rows of an earlier run of the pipe are still in flight",
            fix="It is tried again; pg_locks there shows who holds an advisory lock",
        )


def join_run(connection: "psycopg.Connection[Any]", dataset_id: UUID, exported: str) -> None:
    """Share the snapshot that a run exported, and hold its pipe, too.

    The lock comes first: while the snapshot is there, its run is, and no other one can have begun.

    Raises:
        Transient: the run has ended.
    """
    connection.execute(JOIN, {"key": f"pulse-pipe/{dataset_id}"})
    freeze(connection)
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))
    except psycopg.errors.UndefinedObject:
        raise Transient("the run's own session in the source has ended", fix="It is tried again") from None


@contextmanager
def connect(address: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect in autocommit mode, with the settings that values are read by.

    Raises:
        Transient: the source does not answer, or ends the connection. The error omits the address.
        UserError: the connection string is malformed.
    """
    try:
        options = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:
        raise UserError("the connection string of the source is malformed", fix=_FORMS) from None
    try:
        # By default texts come in the encoding of the source, even those within a message of its log.
        settings: dict[str, Any] = {**ANSWERS, **options, "client_encoding": "UTF8"}
        conninfo = psycopg.conninfo.make_conninfo(**settings)
        connection = _Session.connect(conninfo, application_name="pulse", autocommit=True)
        connection.execute(SETTINGS)
    except psycopg.Error as error:
        raise Transient(f"the source does not answer: {_error_text(str(error))}", fix=_REACH) from None
    try:
        with connection:
            yield connection
    except psycopg.OperationalError as error:
        if not connection.closed:
            raise
        why = error.diag.message_primary or _error_text(str(error))
        raise Transient(f"the source ended the connection: {why}", fix="It is tried again") from None


def _error_text(text: str) -> str:
    """The harmless part of an error: a malformed string can put the password into any part of it."""
    message = _TELLABLE.search(text)
    return _NAMED.sub("...", message[0]) if message else "it cannot be connected to"
