"""Staging tables: Postgres tables to which tasks write dead letters, and from which settle copies them.

One unlogged table per attempt: a zombie attempt writes to a table that no other attempt reads, and rows of
a task that Spark ran twice differ in `part`.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.conform import DeadLetter
from pulse_pipelines.ingest.stages import Plan
from pulse_resources import postgres

CREATE = """
CREATE UNLOGGED TABLE IF NOT EXISTS staging.{dead_letters} (
    part bigint NOT NULL, tenant_id uuid NOT NULL, partition integer NOT NULL,
    event_offset bigint NOT NULL, dataset text, event_id text, reason text NOT NULL, pointer text,
    detail text NOT NULL, payload bytea NOT NULL, received_at timestamptz NOT NULL);
"""
DROP = "DROP TABLE IF EXISTS staging.{dead_letters}"
TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = 'staging' AND starts_with(tablename, 'dead_letters_')
ORDER BY tablename
"""
# Left by runs that died after their batch settled: no attempt follows to drop them. Earlier versions of Pulse
# also staged ids.
OF_SETTLED = """
SELECT t.tablename FROM pg_tables t JOIN ingest_batches b
    ON b.batch_id = substring(t.tablename FROM '^(?:ids|dead_letters)_(.+)_[0-9]+$')
WHERE t.schemaname = 'staging' AND b.state = 'settled'
"""
DROP_ONE = "DROP TABLE IF EXISTS staging.{table}"
COPY_DEAD_LETTERS = """
COPY staging.{dead_letters} (part, tenant_id, partition, event_offset, dataset, event_id, reason,
    pointer, detail, payload, received_at) FROM STDIN (FORMAT binary)
"""
_DEAD_LETTER_TYPES = (
    "int8", "uuid", "int4", "int8", "text", "text", "text", "text", "text", "bytea", "timestamptz"
)  # fmt: skip


def named(template: str, plan: Plan) -> sql.Composed:
    """The statement with the name of this attempt's staging table."""
    return sql.SQL(template).format(dead_letters=sql.Identifier(plan.dead_letters_table))


@contextmanager
def tables(plan: Plan) -> Iterator[None]:
    """Create this attempt's staging table, and drop it after the block.

    Tables of earlier attempts and of settled batches are dropped first; one that a zombie still writes to is
    left to the next attempt.
    """
    for number in range(1, plan.attempt):
        _drop(replace(plan, attempt=number))
    drop_settled()
    with postgres.transaction("pulse_pipeline") as connection:
        connection.execute(named(CREATE, plan))
    try:
        yield
    finally:
        _drop(plan)


def existing() -> list[str]:
    """Names of all staging tables, of any attempt."""
    with postgres.transaction("pulse_pipeline") as connection:
        return [table for (table,) in connection.execute(TABLES)]


def drop_settled() -> None:
    """Drop the staging tables of settled batches, which no one reads again."""
    with postgres.transaction("pulse_pipeline") as connection:
        names = [table for (table,) in connection.execute(OF_SETTLED)]
    for table in names:
        _drop_now(sql.SQL(DROP_ONE).format(table=sql.Identifier(table)))


def _drop(plan: Plan) -> None:
    _drop_now(named(DROP, plan))


def _drop_now(statement: sql.Composed) -> None:
    with (
        contextlib.suppress(psycopg.OperationalError),
        postgres.transaction("pulse_pipeline") as connection,
    ):
        connection.execute("SET LOCAL lock_timeout = '2s'")
        connection.execute(statement)


class StagingWriter:
    """Writes one topic's dead letters under the mark `part`, a COPY per chunk."""

    def __init__(self, plan: Plan, tenant: Tenant, part: int) -> None:
        self._plan = plan
        self._tenant = tenant
        self._part = part

    def __enter__(self) -> Self:
        self._lent = postgres.pool("pulse_pipeline").connection()
        self._connection = self._lent.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lent.__exit__(kind, error, trace)

    def add_dead_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Stage dead letters with their payload as received."""
        rows = [self._row(letter) for letter in letters]
        if rows:
            copy_dead_letters(self._connection, self._plan, rows)

    def _row(self, letter: DeadLetter) -> Sequence[object]:
        message, rejected = letter.message, letter.rejected
        return (
            self._part,
            self._tenant.tenant_id,
            message.partition,
            message.offset,
            letter.dataset,
            letter.event_id,
            rejected.reason.value,
            rejected.pointer and rejected.pointer.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            rejected.detail.replace("\0", "\N{REPLACEMENT CHARACTER}"),
            message.payload,
            datetime.fromtimestamp(message.received_ms / 1000, UTC),
        )


def copy_dead_letters(connection: postgres.Connection, plan: Plan, rows: Iterable[Sequence[object]]) -> None:
    """COPY rows into this attempt's staged dead letters."""
    with connection.cursor().copy(named(COPY_DEAD_LETTERS, plan)) as copy:
        copy.set_types(_DEAD_LETTER_TYPES)
        for row in rows:
            copy.write_row(row)
