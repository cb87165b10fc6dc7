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

from pulse_pipelines.domain import json_values
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.sinks import answers
from pulse_pipelines.pipes.sinks.deliveries import Counts
from pulse_pipelines.pipes.sinks.reading import Batch, Entity
from pulse_pipelines.pipes.sinks.target import KEY, Target
from pulse_pipelines.pipes.sinks.texts import text
from pulse_pipelines.pipes.sinks.writing import GONE, Outcome, Row, Writer
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
ASIDE = "pulse_set_aside"
ASIDE_THERE = "SELECT to_regclass({set_aside}) IS NOT NULL"
MAKE_ASIDE = """
CREATE TABLE IF NOT EXISTS {aside} (pipe text, id text, entity text NOT NULL, reason text NOT NULL,
    since timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipe, id))
"""
SET_ASIDE = """
INSERT INTO {aside} (pipe, id, entity, reason) VALUES (%s, %s, %s, %s)
ON CONFLICT (pipe, id) DO UPDATE SET entity = EXCLUDED.entity, reason = EXCLUDED.reason
"""
TAKE_BACK = "DELETE FROM {aside} WHERE pipe = %s AND id = ANY (%s)"
ALL_ASIDE = "SELECT id, entity, reason FROM {aside} WHERE pipe = %s ORDER BY since, id LIMIT %s"
EMPTY_ASIDE = "DELETE FROM {aside} WHERE pipe = %s"
RETRIED = 10_000
"""Most entities that are set aside and tried again by a run."""
_PLACE = re.compile(r"COPY pulse_rows, line (\d+)(?:, column ([^:]+):)?")
_DOUBLED = "another entity has the same key in this table"


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
        self._names: dict[str, sql.Composable] = {
            "table": target.quoted,
            "positions": target.beside(POSITIONS),
            "brought": target.beside(BROUGHT),
            "aside": target.beside(ASIDE),
            "gone": sql.Identifier(GONE),
        }
        self._new: set[str] = set()
        self.position = self._opened(f"{log}/{target.form}")
        self._writer = Writer(connection, target, self._names)

    @answers.explained()
    def write(self, batch: Batch) -> Counts:
        """Write a batch, and the position after it; returns what became of it.

        An entity that cannot be written is set aside, and tried again by `retry` and with its next version.

        Raises:
            UserError: the sink cannot be written.
            Conflict: another run was there.
            Transient: the sink does not answer.
        """
        with self._transaction():
            found = self._written(batch.entities)
            fail_point("sink.written")
            self._moved(batch.until)
            fail_point("sink.before_commit")
        fail_point("sink.after_commit")
        self.position.updated = batch.until
        return Counts(batch.versions, found.upserted, found.deleted)

    @answers.explained()
    def retry(self) -> tuple[Counts, list[tuple[str, str]]]:
        """Write what was set aside, as far as that goes by now; returns what became of it, and what is left.

        What is left: ids of entities, and why they cannot be written.
        """
        new = self._new.copy()
        with self._transaction():
            kept = self._set_aside()
            found = self._written([_entity(key, entity) for key, entity, _ in kept]) if kept else Outcome()
            left = [(key, reason) for key, _, reason in self._set_aside()] if kept else []
        new &= {key for key, _ in left}
        return Counts(upserted=found.upserted, deleted=found.deleted, refused=len(new)), left

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
        if self._has_aside():
            self._run(EMPTY_ASIDE, self._pipe)
        self._run(BEGIN, self._pipe, self._target.oid, log, rows)
        return bool(rows)

    def _written(self, entities: Sequence[Entity]) -> Outcome:
        """Write entities; what cannot be written is set aside, and what was is no more."""
        rows, reasons = dict[int, Row](), dict[int, str]()
        for place, entity in enumerate(entities):
            try:
                rows[place] = self._texts(entity)
            except ValueError as error:
                if not entity.gone:  # else it never was there
                    reasons[place] = str(error)
        found = self._writer.write(rows, {place for place in rows if entities[place].gone})
        reasons |= {place: _reason(error) for place, error in found.refused.items()}
        if self.position.sweeps:
            self._run(NOTE, self._pipe)
            self._run(UNNOTE, self._pipe)
        if self._has_aside():
            self._run(TAKE_BACK, self._pipe, [entity.id for entity in entities])
        elif reasons:
            self._make_aside(entities[min(reasons)], reasons[min(reasons)])
        for place, reason in sorted(reasons.items()):
            content = json_values.written([entities[place].gone, entities[place].content]).decode()
            self._run(SET_ASIDE, self._pipe, entities[place].id, content, reason)
        self._new |= {entities[place].id for place in reasons}
        return found

    def _texts(self, entity: Entity) -> Row:
        row: list[str | None] = []
        for column, kind in self._target.columns:
            value = entity.id if column == KEY else entity.content.get(column)
            try:
                row.append(text(value, kind))
            except ValueError as error:
                raise ValueError(f"{error} (column {column})") from None
        return row

    def _has_aside(self) -> bool:
        there = sql.Literal(self._names["aside"].as_string(None))
        row = self._connection.execute(sql.SQL(ASIDE_THERE).format(set_aside=there)).fetchone()
        return row == (True,)

    def _set_aside(self) -> list[tuple[str, str, str]]:
        return self._execute(ALL_ASIDE, self._pipe, RETRIED).fetchall() if self._has_aside() else []

    def _make_aside(self, entity: Entity, reason: str) -> None:
        try:
            with self._transaction():
                self._run(MAKE_ASIDE)
        except psycopg.errors.InsufficientPrivilege:
            raise UserError(
                f"an entity cannot be written: {reason}",
                fix=f"Its batch waits for it: to set it aside in {ASIDE} takes CREATE on the schema",
                **self._where,
                entity=entity.id,
            ) from None

    def _moved(self, updated: int) -> None:
        if self._run(MOVE, updated, self._pipe, self.position.log, self.position.updated) != 1:
            raise self._overtaken()

    def _overtaken(self) -> Conflict:
        return Conflict("another run has moved the table's position", **self._where)

    def _transaction(self) -> Any:
        return self._connection.transaction()

    def _execute(self, query: str, *values: object) -> Any:
        return self._connection.execute(sql.SQL(query).format(**self._names), values or None)

    def _run(self, query: str, *values: object) -> int:
        return int(self._execute(query, *values).rowcount)


def _entity(key: str, stored: str) -> Entity:
    gone, content = json_values.stored(stored)
    return Entity(key, gone, content, 0)


def _reason(error: psycopg.Error | None) -> str:
    """Why a row cannot be written, without its values."""
    if error is None:
        return _DOUBLED
    place = _PLACE.search(error.diag.context or "")
    column = place[2] if place and not error.diag.column_name else None
    return answers.said(error) + (f" (column {column})" if column else "")
