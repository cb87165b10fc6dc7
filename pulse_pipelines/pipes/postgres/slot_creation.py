"""Creation of slots, which waits for transactions: of the server, and of those that write the table."""

import time
from typing import Any

import psycopg

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.pipes.postgres import publications
from pulse_resources.errors import Transient, UserError

WRITERS_S = 600
"""Seconds that a first run waits for transactions, of the server and then of its table, ..."""
POLL_S = 0.1
"""... and between two checks of them."""

CREATE_SLOT = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
# A transaction holds this lock until others see what it wrote, which is later than its commit is in the log.
WRITERS = """
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND granted AND relation = to_regclass(%s)
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""


def create(source: "psycopg.Connection[Any]", definition: Definition, name: str) -> str:
    """Create a slot; returns where its changes begin.

    Raises:
        UserError: the source has no slot left; the publication of this name is dropped.
        Transient: a transaction of the server does not end; likewise.
    """
    try:
        with source.transaction():
            source.execute(f"SET LOCAL statement_timeout = '{WRITERS_S}s'")
            ((lsn,),) = source.execute(CREATE_SLOT, [name]).fetchall()
    except psycopg.Error as error:
        publications.drop(source, name)
        if isinstance(error, psycopg.errors.QueryCanceled):
            raise _waits(
                "a transaction of the server does not end: a slot begins after it", definition
            ) from None
        if not isinstance(error, psycopg.errors.ConfigurationLimitExceeded):
            raise
        raise UserError(
            "the source has no replication slot left",
            fix="Raise max_replication_slots there, or drop slots that have no reader: pg_replication_slots",
            pipe=definition.pipe,
        ) from None
    return str(lsn)


def wait_for_writers(source: "psycopg.Connection[Any]", definition: Definition, part: str) -> None:
    """Wait until what the log has of a table by now is seen by everyone.

    Raises:
        Transient: a transaction that writes the table does not end.
    """
    writing, until = set(source.execute(WRITERS, [part])), time.monotonic() + WRITERS_S
    while writing:
        if time.monotonic() > until:
            why = "a transaction that writes the table does not end, or waits for a synchronous standby"
            raise _waits(why, definition)
        time.sleep(POLL_S)
        writing &= set(source.execute(WRITERS, [part]))


def _waits(why: str, definition: Definition) -> Transient:
    fix = "It is tried again. pg_locks, pg_stat_activity and pg_prepared_xacts there show it"
    return Transient(why, fix=fix, pipe=definition.pipe)
