"""A table of Postgres as a sink: batches of entities and the position after them, in one transaction each.

The position is a row of `pulse_positions`, beside the table: what the table has, and how far it is, become
true together, so that a run that dies anywhere is gone on with. The transaction takes the position only from
where its run has seen it, and the session holds an advisory lock of the pipe, so no older run overwrites
what a newer one has written.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.sinks import answers
from pulse_pipelines.pipes.sinks.deliveries import Counts
from pulse_pipelines.pipes.sinks.reading import Batch, Entity
from pulse_pipelines.pipes.sinks.target import KEY, Target
from pulse_pipelines.pipes.sinks.texts import text
from pulse_resources.errors import Conflict, UserError
from pulse_resources.faults import fail_point

POSITIONS, BROUGHT = "pulse_positions", "pulse_brought"
CREATE = """
CREATE TABLE IF NOT EXISTS {positions} (
    pipe     text PRIMARY KEY,
    written  oid NOT NULL UNIQUE,
    log      text NOT NULL,
    updated  bigint NOT NULL,
    sweeps   boolean NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS {brought} (pipe text, id text, PRIMARY KEY (pipe, id))
"""
THERE = "SELECT to_regclass({positions}) IS NOT NULL AND to_regclass({brought}) IS NOT NULL"
READ = "SELECT written = %s, log, updated, sweeps FROM {positions} WHERE pipe = %s"
OWNER = "SELECT pipe FROM {positions} WHERE written = %s"
ANY = "SELECT EXISTS (SELECT FROM {table})"
BEGIN = """
INSERT INTO {positions} (pipe, written, log, updated, sweeps) VALUES (%s, %s, %s, 0, %s)
ON CONFLICT (pipe) DO UPDATE SET written = EXCLUDED.written, log = EXCLUDED.log, updated = 0,
    sweeps = EXCLUDED.sweeps, moved_at = now()
"""
MOVE = """
UPDATE {positions} SET updated = %s, moved_at = now() WHERE pipe = %s AND log = %s AND updated = %s
"""
ROWS = """
CREATE TEMP TABLE pulse_rows ON COMMIT DELETE ROWS AS SELECT {columns}, false AS {gone} FROM {table} LIMIT 0
"""
COPY = "COPY pulse_rows ({columns}, {gone}) FROM STDIN"
UPSERT = """
INSERT INTO {table} ({columns}) SELECT {columns} FROM pulse_rows WHERE NOT {gone} ON CONFLICT (id) DO {set}
"""
DELETE = "DELETE FROM {table} t USING pulse_rows r WHERE r.{gone} AND t.id = r.id"
NOTE = """
INSERT INTO {brought} SELECT %s, id::text FROM pulse_rows WHERE NOT {gone} ON CONFLICT DO NOTHING
"""
UNNOTE = """
DELETE FROM {brought} b USING pulse_rows r WHERE b.pipe = %s AND r.{gone} AND b.id = r.id::text
"""
SWEEP = """
DELETE FROM {table} t WHERE NOT EXISTS (SELECT FROM {brought} b WHERE b.pipe = %s AND b.id = t.id::text)
"""
FORGET = "DELETE FROM {brought} WHERE pipe = %s"
SWEPT = "UPDATE {positions} SET sweeps = false WHERE pipe = %s AND log = %s AND updated = %s"
GONE = "_pulse_gone"
REFUSALS = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.CardinalityViolation,
    psycopg.errors.RaiseException,  # a trigger's
)
"""Errors that an entity of a batch is at fault for."""
_PLACE = re.compile(r"COPY pulse_rows, line (\d+)(?:, column ([^:]+):)?")


@dataclass
class Position:
    """How far a table is."""

    log: str
    """Identifies the log, and the form of the table: of another one everything is brought again."""
    updated: int
    sweeps: bool
    """Whether rows that are not brought again are to be deleted at the end of the log."""


class Table:
    """A table that a pipe writes, in a session that holds the pipe.

    Args:
        connection: in autocommit mode.
    """

    def __init__(self, connection: "psycopg.Connection[Any]", pipe: Pipe, target: Target, log: str) -> None:
        self._connection, self._target = connection, target
        self._pipe = f"{pipe.tenant.tenant_id}/{pipe.name}"
        self._where = {"pipe": pipe.name, "table": str(pipe.definition.sink.table)}
        columns = sql.SQL(", ").join(sql.Identifier(column) for column, _ in target.columns)
        others = [sql.Identifier(column) for column, _ in target.columns if column != KEY]
        assigned = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in others)
        self._names: dict[str, sql.Composable] = {
            "table": target.quoted,
            "positions": target.beside(POSITIONS),
            "brought": target.beside(BROUGHT),
            "columns": columns,
            "gone": sql.Identifier(GONE),
            "set": sql.SQL("UPDATE SET ") + assigned if others else sql.SQL("NOTHING"),
        }
        self.position = self._opened(f"{log}/{target.form}")

    @answers.explained()
    def write(self, batch: Batch) -> Counts:
        """Write a batch, and the position after it; returns what became of it.

        Raises:
            UserError: an entity cannot be written, or another one has its place; says which and why.
            Conflict: another run was there.
            Transient: the sink does not answer.
        """
        rows = self._texts(batch.entities)
        refused: psycopg.Error | None = None
        with self._transaction():
            try:
                upserted, deleted = self._written(rows)
            except REFUSALS as error:
                refused = error
            else:
                fail_point("sink.written")
                self._moved(batch.until)
                fail_point("sink.before_commit")
        if refused is not None:
            raise self._refused(batch.entities, rows, refused)
        fail_point("sink.after_commit")
        self.position.updated = batch.until
        return Counts(batch.versions, upserted, deleted)

    @answers.explained()
    def sweep(self) -> Counts:
        """Delete what was not brought again, once the log was read to its end."""
        with self._transaction():
            deleted = self._run(SWEEP, self._pipe)
            self._run(FORGET, self._pipe)
            if self._run(SWEPT, self._pipe, self.position.log, self.position.updated) != 1:
                raise self._overtaken()
            fail_point("sink.before_swept")
        fail_point("sink.after_swept")
        self.position.sweeps = False
        return Counts(deleted=deleted)

    @answers.explained()
    def _opened(self, log: str) -> Position:
        """The position of the table, which is the start of the log where it is of another one."""
        with self._transaction():
            self._create()
            found = self._execute(READ, self._target.oid, self._pipe).fetchone()
            if found is not None and found[:2] == (True, log):
                position = Position(log, *found[2:])
            else:
                position = Position(log, 0, self._begun(log, known=found is not None and found[0]))
        self._execute(ROWS)
        return position

    def _create(self) -> None:
        """Make the tables of positions; asks first, since a role may write them that may not make any."""
        named = {key: sql.Literal(self._names[key].as_string(None)) for key in ("positions", "brought")}
        if self._connection.execute(sql.SQL(THERE).format(**named)).fetchone() != (True,):
            self._connection.execute(sql.SQL(CREATE).format(**self._names))

    def _begun(self, log: str, *, known: bool) -> bool:
        """Begin to bring everything; returns whether the table has rows of before.

        Args:
            known: whether it is this pipe that wrote them.
        """
        owner = self._execute(OWNER, self._target.oid).fetchone()
        if owner is not None and owner[0] != self._pipe:
            of, _, other = owner[0].partition("/")
            own = self._pipe.startswith(f"{of}/")
            raise UserError(
                f"another pipe{f', {other},' if own else ' of another tenant'} writes this table",
                fix=f"If that pipe is gone, delete its row of {POSITIONS}, and empty the table",
                **self._where,
            )
        ((rows,),) = self._execute(ANY).fetchall()
        if rows and not known:
            raise UserError(
                "the table has rows that this pipe has not written, and it would delete them",
                fix="Empty the table, or name another one",
                **self._where,
            )
        self._run(FORGET, self._pipe)
        self._run(BEGIN, self._pipe, self._target.oid, log, rows)
        return bool(rows)

    def _texts(self, entities: Sequence[Entity]) -> list[list[str | None]]:
        rows = []
        for entity in entities:
            row: list[str | None] = []
            for column, kind in self._target.columns:
                value = entity.id if column == KEY else entity.content.get(column)
                try:
                    row.append(text(value, kind))
                except ValueError as error:
                    raise self._not_held(entity, column, str(error)) from None
            rows.append([*row, "t" if entity.gone else "f"])
        return rows

    def _written(self, rows: Sequence[Sequence[str | None]]) -> tuple[int, int]:
        """Write rows within a transaction, of which nothing is left if that fails."""
        with self._connection.transaction():
            with self._connection.cursor().copy(sql.SQL(COPY).format(**self._names)) as copy:
                for row in rows:
                    copy.write_row(row)
            upserted, deleted = self._run(UPSERT), self._run(DELETE)
            if self.position.sweeps:
                self._run(NOTE, self._pipe)
                self._run(UNNOTE, self._pipe)
        return upserted, deleted

    def _moved(self, updated: int) -> None:
        if self._run(MOVE, updated, self._pipe, self.position.log, self.position.updated) != 1:
            raise self._overtaken()

    def _refused(
        self, entities: Sequence[Entity], rows: Sequence[Sequence[str | None]], error: psycopg.Error
    ) -> UserError:
        """The error of the first entity that cannot be written, found by trying ever fewer of them."""
        first, many = 0, len(rows)
        while many > 1:
            half = many // 2
            if found := self._tried(rows[first : first + half]):
                error, many = found, half
            elif found := self._tried(rows[first + half : first + many]):
                error, first, many = found, first + half, many - half
            else:  # only together: two entities with one key
                return self._not_held(entities[first], error.diag.column_name, answers.said(error))
        place = _PLACE.search(error.diag.context or "")
        column = place[2] if place else None
        return self._not_held(entities[first], error.diag.column_name or column, answers.said(error))

    def _tried(self, rows: Sequence[Sequence[str | None]]) -> psycopg.Error | None:
        try:
            with self._transaction():
                self._written(rows)
                raise psycopg.Rollback
        except REFUSALS as error:
            return error
        return None

    def _not_held(self, entity: Entity, column: str | None, why: str) -> UserError:
        return UserError(
            f"an entity cannot be written: {why}",
            fix="Nothing of its batch was written. Change the entity, or the table, and run the pipe again",
            **self._where,
            entity=entity.id,
            **({"column": column} if column else {}),
        )

    def _overtaken(self) -> Conflict:
        return Conflict("another run has moved the table's position", **self._where)

    def _transaction(self) -> Any:
        return self._connection.transaction()

    def _execute(self, query: str, *values: object) -> Any:
        return self._connection.execute(sql.SQL(query).format(**self._names), values or None)

    def _run(self, query: str, *values: object) -> int:
        return int(self._execute(query, *values).rowcount)
