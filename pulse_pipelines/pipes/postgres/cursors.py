"""Cursors: the column by which an incremental pipe goes on, and the position that it gives.

An infinite or NaN cursor is never the position: nothing would be beyond it. Rows that have one are read in
each run, and count as unchanged unless they are not.
"""

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.pipes.postgres import sessions, tables
from pulse_pipelines.pipes.postgres.tables import Table


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
        return cls(table, column, tables.type_of(source, table.parts[0], column))

    def known(self, source: "psycopg.Connection[Any]", position: str | None) -> str | None:
        """A position, unless it is infinite, as one of an earlier version can be."""
        at = sql.SQL("{}::{}").format(sql.Literal(position), sql.SQL(self.kind))
        found = source.execute(sql.SQL("SELECT {}").format(tables.finite(at, self.kind))).fetchone()
        return position if found == (True,) else None

    def highest(self, source: "psycopg.Connection[Any]") -> str | None:
        """The highest one in the table that is finite; None: there is none."""
        source.execute(sessions.SETTINGS)
        name = sql.Identifier(self.column)
        parts = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT max({}) AS at FROM ONLY {} WHERE {}").format(
                name, sql.SQL(part), tables.finite(name, self.kind)
            )
            for part in self.table.parts
        )
        query = sql.SQL("SELECT max(at)::text FROM ({}) of_parts").format(parts)
        ((found,),) = source.execute(query).fetchall()
        return None if found is None else str(found)

    def since(self, position: str, overlap: str | None) -> sql.Composable:
        """Condition for rows from a position on, less the overlap: rows read again count as unchanged."""
        name = sql.Identifier(self.column)
        least = tables.less(sql.Literal(position), self.kind, overlap)
        beyond = sql.SQL("t.{} >= {}").format(name, least)  # NaN and infinity, too
        if (lowest := tables.lowest(self.kind)) is None:
            return beyond
        # Not as `NOT isfinite(...)`: an index on the cursor serves both.
        return sql.SQL("({} OR t.{} = {})").format(beyond, name, sql.Literal(lowest))
