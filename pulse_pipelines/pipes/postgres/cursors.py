"""Cursors: the column by which an incremental pipe continues, and its position.

An infinite or NaN cursor is never the position: nothing would be beyond it. Rows that have one are read in
each run, and count as unchanged unless they are not.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pipes import APART, parted
from pulse_pipelines.pipes.postgres import tables
from pulse_pipelines.pipes.postgres.tables import Table
from pulse_pipelines.pipes.registry import Pipe


class Reached(NamedTuple):
    """The position of an incremental pipe; people see only its cursor."""

    cursor: str | None
    shape: str = ""
    """Form of the table at that time: with another one, all rows may differ. Empty if unknown ..."""
    moment: str = ""
    """... like the moment since which attached partitions have not been read."""

    @classmethod
    def of(cls, pipe: Pipe) -> "Reached":
        """The position that a text states."""
        cursor, form = pipe.position, pipe.form
        if cursor is not None and form is None:
            cursor, form = parted(cursor)
        return cls(cursor, *(form or "").split(APART)[:2])

    def __str__(self) -> str:
        return APART.join(map(str, self))


@dataclass(frozen=True)
class Cursor:
    """A column that grows with each change of a row."""

    table: Table
    column: str
    kind: str
    """By `tables.type_of`."""

    @classmethod
    def of(cls, source: "psycopg.Connection[Any]", table: Table, column: str) -> "Cursor":
        """The cursor of a table."""
        return cls(table, column, tables.type_of(source, table.name, column))

    def usable(self, source: "psycopg.Connection[Any]", position: str | None) -> str | None:
        """A position, or None if the column's type no longer has this value, or it is infinite."""
        at = sql.SQL("{}::{}").format(sql.Literal(position), sql.SQL(self.kind))
        # Not `IS NOT NULL`: of a composite that asks whether none of its fields is null.
        query = sql.SQL("SELECT {} IS DISTINCT FROM NULL AND {}").format(at, tables.finite(at, self.kind))
        try:
            with source.transaction():
                row = source.execute(query).fetchone()
        except psycopg.DataError:  # it has another type, or the value of an enum another name
            return None
        return position if row == (True,) else None

    def highest(self, source: "psycopg.Connection[Any]") -> str | None:
        """The highest one in the table that is finite; None: there is none."""
        ((value,),) = source.execute(self.query).fetchall()
        return None if value is None else str(value)

    @property
    def query(self) -> sql.Composed:
        """The query for the highest one."""
        name = sql.Identifier(self.column)
        parts = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT max({}) AS at FROM ONLY {} WHERE {}").format(
                name, sql.SQL(part), tables.finite(name, self.kind)
            )
            for part in self.table.parts
        )
        return sql.SQL("SELECT max(at)::text FROM ({}) of_parts").format(parts)

    def since(self, position: str | None, overlap: str | None) -> sql.Composable:
        """Condition for rows from a position on, less the overlap: rows read again count as unchanged."""
        name = sql.Identifier(self.column)
        least = tables.less(sql.Literal(position), self.kind, overlap)
        beyond = sql.SQL("t.{} >= {}").format(name, least)  # NaN and infinity, too
        if self.kind == "interval":  # which has infinite values since Postgres 17
            return sql.SQL("({} OR NOT isfinite(t.{}))").format(beyond, name)
        if (lowest := tables.lowest(self.kind)) is None:
            return beyond
        # Not as `NOT isfinite(...)`: an index on the cursor serves both.
        return sql.SQL("({} OR t.{} = {})").format(beyond, name, sql.Literal(lowest))
