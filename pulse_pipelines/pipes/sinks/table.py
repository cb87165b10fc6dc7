"""A table of Postgres as a sink: batches of entities and the position after them, in one transaction each.

The position is a row of `pulse_positions`, in the table's schema: rows and position commit together, so the
next run continues after a run that died anywhere. The transaction takes the position only from
where its run has seen it, and the session holds an advisory lock of the pipe, so no older run overwrites
what a newer one has written.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain import json_values
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.sinks import answers, statements
from pulse_pipelines.pipes.sinks.deliveries import Counts
from pulse_pipelines.pipes.sinks.reading import Batch, Entity
from pulse_pipelines.pipes.sinks.target import KEY, Target
from pulse_pipelines.pipes.sinks.texts import escaped, escaped_id, key_text, stored_key, text, unescaped
from pulse_pipelines.pipes.sinks.writing import CHECK, IS_DELETED, Outcome, TextRow, Writer
from pulse_resources.errors import Conflict, UserError
from pulse_resources.process.faults import fail_point

RETRIED = 10_000
"""Most refused entities that a run tries again."""


@dataclass
class Position:
    """The position that a table has recorded."""

    log: str
    """Identifies the log, and the form of the table: with another one everything is copied again."""
    updated: int
    deletes_missing: bool
    """Whether rows that are missing from the log are deleted at its end."""


class SinkTable:
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
            "positions": target.beside(statements.POSITIONS),
            "listed": target.beside(statements.LISTED),
            "refused": target.beside(statements.REFUSED),
            "gone": sql.Identifier(IS_DELETED),
        }
        # In a statement with values, % stands before a placeholder.
        self._names_beside_values = {
            name: sql.SQL(quoted.as_string(None).replace("%", "%%")) for name, quoted in self._names.items()
        }
        self._is_narrow = connection.info.parameter_status("server_encoding") != "UTF8"
        self._new: set[str] = set()
        self.position = self._opened(f"{log}/{target.form}")
        self._writer = Writer(connection, target, self._names)

    @answers.explained()
    def write(self, batch: Batch) -> Counts:
        """Write a batch, and the position after it; returns the outcome.

        An entity that cannot be written is stored as refused, and tried again by `retry`.

        Raises:
            UserError: the sink cannot be written.
            Conflict: another run was there.
            Transient: the sink does not answer.
        """
        with self._transaction():
            outcome = self._written(batch.entities)
            fail_point("sink.written")
            self._moved(batch.until)
            fail_point("sink.before_commit")
        fail_point("sink.after_commit")
        self.position.updated = batch.until
        return Counts(batch.versions, outcome.upserted, outcome.deleted)

    @answers.explained()
    def retry(self) -> tuple[Counts, list[tuple[str, str]]]:
        """Try the refused entities again.

        Returns:
            The counts, and the ids of entities that still cannot be written, with the reason.
        """
        new = self._new.copy()
        with self._transaction():
            stored = self._refused_entities()
            outcome = (
                self._written([_entity(key, entity) for key, entity, _ in stored]) if stored else Outcome()
            )
            refused = [(key, reason) for key, _, reason in self._refused_entities()] if stored else []
        new &= {key for key, _ in refused}
        return Counts(upserted=outcome.upserted, deleted=outcome.deleted, refused=len(new)), refused

    @answers.explained()
    def delete_missing(self) -> Counts:
        """Delete the rows that are missing from the log, once it was read to its end.

        Those that are kept by a trigger, a rule or what refers to them are stored as refused deletions.
        """
        with self._transaction():
            deleted = self._delete_all_missing()
            kind, last = dict(self._target.columns)[KEY], ""
            while keys := self._execute(statements.REMAINING, self._pipe, last, RETRIED).fetchall():
                deletions = [Entity(stored_key(key, kind), True, {}, 0) for (key,) in keys]
                deleted += self._written(deletions).deleted
                ((last,),) = keys[-1:]
            self._run(statements.FORGET, self._pipe)
            if self._run(statements.END_DELETIONS, self._pipe, self.position.log, self.position.updated) != 1:
                raise self._overtaken()
            fail_point("sink.before_swept")
        fail_point("sink.after_swept")
        self.position.deletes_missing = False
        return Counts(deleted=deleted)

    def _delete_all_missing(self) -> int:
        """Delete the missing rows at once; none if one of them cannot be deleted."""
        try:
            with self._transaction():
                deleted = self._run(statements.DELETE_MISSING, self._pipe)
                self._run(CHECK)
                return deleted
        except psycopg.Error as error:
            if not answers.is_of_row(error):
                raise
            return 0

    @answers.explained()
    def _opened(self, log: str) -> Position:
        """The position of the table; the start of the log if its position belongs to another log."""
        with self._transaction():
            self._create()
            row = self._execute(statements.READ, self._target.oid, self._pipe).fetchone()
            if row is not None and row[:2] == (True, log):
                return Position(log, *row[2:])
            return Position(log, 0, self._begin(log, is_writer=row is not None and row[0]))

    def _create(self) -> None:
        """Create the tables of positions, unless they exist: the role may lack the right to create any."""
        named = {key: sql.Literal(self._names[key].as_string(None)) for key in ("positions", "listed")}
        if self._connection.execute(sql.SQL(statements.TABLES_EXIST).format(**named)).fetchone() != (True,):
            self._connection.execute(sql.SQL(statements.CREATE).format(**self._names))

    def _begin(self, log: str, *, is_writer: bool) -> bool:
        """Begin to copy everything; returns whether the table has earlier rows.

        Args:
            is_writer: whether this pipe wrote them.
        """
        owner = self._execute(statements.OWNER, self._target.oid).fetchone()
        if owner is not None and owner[0] != self._pipe:
            of, _, other = owner[0].partition("/")
            same_tenant = self._pipe.startswith(f"{of}/")
            raise UserError(
                f"another pipe{f', {other},' if same_tenant else ' of another tenant'} writes this table",
                fix=f"If that pipe is gone, delete its row of {statements.POSITIONS}, and empty the table",
                **self._where,
            )
        ((rows,),) = self._execute(statements.ANY).fetchall()
        if rows and not is_writer:
            raise UserError(
                "the table has rows that this pipe has not written, and it would delete them",
                fix="Empty the table, or name another one",
                **self._where,
            )
        self._run(statements.FORGET, self._pipe)
        if self._has_refused_table():
            self._run(statements.EMPTY_REFUSED, self._pipe)
        self._run(statements.BEGIN, self._pipe, self._target.oid, log, rows)
        return bool(rows)

    def _written(self, entities: Sequence[Entity]) -> Outcome:
        """Write entities; store those that cannot be written, and remove stored ones that were written."""
        rows, reasons = dict[int, TextRow](), dict[int, str]()
        for place, entity in enumerate(entities):
            try:
                rows[place] = self._texts(entity)
            except ValueError as error:
                if not entity.is_deleted:  # a deletion: it was never written
                    reasons[place] = str(error)
        outcome = self._writer.write(rows, {place for place in rows if entities[place].is_deleted})
        reasons |= {place: answers.reason(error) for place, error in outcome.refused.items()}
        if self.position.deletes_missing:
            self._run(statements.NOTE, self._pipe)
            self._run(statements.UNNOTE, self._pipe)
            self._note_refused([entities[place].id for place in reasons if not entities[place].is_deleted])
        if self._has_refused_table():
            ids = [self._listed(entity.id) for entity in entities]
            self._run(statements.DELETE_REFUSED, self._pipe, ids)
        self._refuse([(entities[place], reason) for place, reason in sorted(reasons.items())])
        return outcome

    def _note_refused(self, ids: Sequence[str]) -> None:
        """Note entities that cannot be written: a row that one of them has stays as it is."""
        kind = dict(self._target.columns)[KEY]
        for entity_id in ids:
            with suppress(ValueError, psycopg.DataError), self._transaction():  # no row has such an id
                self._run(statements.NOTE_ONE, self._pipe, key_text(entity_id, kind))

    def _refuse(self, refused: Sequence[tuple[Entity, str]]) -> None:
        """Store entities as refused, each with its reason."""
        if refused and not self._has_refused_table():
            self._create_refused_table(*refused[0])
        for entity, reason in refused:
            content = escaped(json_values.written([entity.is_deleted, entity.content]).decode())
            self._run(statements.INSERT_REFUSED, self._pipe, self._listed(entity.id), content, reason)
            self._new.add(entity.id)

    def _texts(self, entity: Entity) -> TextRow:
        row: list[str | None] = []
        for column, kind in self._target.columns:
            try:
                is_key = column == KEY
                row.append(key_text(entity.id, kind) if is_key else text(entity.content.get(column), kind))
            except ValueError as error:
                raise ValueError(f"{error} (column {column})") from None
        return row

    def _has_refused_table(self) -> bool:
        name = sql.Literal(self._names["refused"].as_string(None))
        row = self._connection.execute(sql.SQL(statements.REFUSED_EXISTS).format(refused=name)).fetchone()
        return row == (True,)

    def _refused_entities(self) -> list[tuple[str, str, str]]:
        if not self._has_refused_table():
            return []
        refused = self._execute(statements.ALL_REFUSED, self._pipe, RETRIED).fetchall()
        return [(unescaped(key) if self._is_narrow else key, *more) for key, *more in refused]

    def _listed(self, entity_id: str) -> str:
        """An id as `pulse_set_aside` has it."""
        return escaped_id(entity_id) if self._is_narrow else entity_id

    def _create_refused_table(self, entity: Entity, reason: str) -> None:
        try:
            with self._transaction():
                self._run(statements.CREATE_REFUSED)
        except psycopg.errors.InsufficientPrivilege:
            raise UserError(
                f"an entity cannot be written: {reason}",
                fix=f"Its batch waits for it: to store it in {statements.REFUSED}, the role needs CREATE on"
                " the schema",
                **self._where,
                entity=entity.id,
            ) from None

    def _moved(self, updated: int) -> None:
        if self._run(statements.MOVE, updated, self._pipe, self.position.log, self.position.updated) != 1:
            raise self._overtaken()

    def _overtaken(self) -> Conflict:
        return Conflict("another run has moved the table's position", **self._where)

    def _transaction(self) -> Any:
        return self._connection.transaction()

    def _execute(self, query: str, *values: object) -> Any:
        statement = sql.SQL(query).format(**(self._names_beside_values if values else self._names))
        return self._connection.execute(statement, values or None)

    def _run(self, query: str, *values: object) -> int:
        return int(self._execute(query, *values).rowcount)


def _entity(key: str, stored: str) -> Entity:
    is_deleted, content = json_values.stored(stored)
    return Entity(key, is_deleted, content, 0)
