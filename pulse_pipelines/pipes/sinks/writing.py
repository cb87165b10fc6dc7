"""Rows of a batch, written within the caller's transaction: each row then equals its entity, or is unchanged.

Deletions come first, and constraints that can be deferred are checked at the end. Rows that take each other's
unique values are written in two steps. What cannot be written then is found by halving, and left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.pipes.sinks import answers
from pulse_pipelines.pipes.sinks.answers import KeyTaken, LeftOut
from pulse_pipelines.pipes.sinks.target import KEY, Target

TextRow = Sequence[str | None]
ROWS = """
CREATE TEMP TABLE pulse_rows ON COMMIT DELETE ROWS AS
SELECT {columns}, false AS {gone}, 0 AS {number} FROM {table} LIMIT 0
"""
COPY = "COPY pulse_rows ({columns}, {gone}, {number}) FROM STDIN"
# A domain that allows no null is not checked for a column that is not named.
COPY_DELETED = "COPY pulse_rows (id, {gone}, {number}) FROM STDIN"
CLEAR = "TRUNCATE pulse_rows"
DEFER = "SET CONSTRAINTS ALL DEFERRED"
CHECK = "SET CONSTRAINTS ALL IMMEDIATE"
# In a column that ignores case, or has 1 and 1.0 as one number, the row of a key may be another entity's.
SAME = 't.id::text COLLATE "C" = {}.id::text COLLATE "C"'
UPSERT = """
INSERT INTO {table} AS t ({columns}) SELECT {columns} FROM pulse_rows WHERE NOT {gone}
ON CONFLICT (id) DO {set}
"""
DELETE = "DELETE FROM {table} t USING pulse_rows r WHERE r.{gone} AND t.id = r.id AND {same}"
REMAINS = "SELECT FROM {table} t JOIN pulse_rows r ON t.id = r.id AND {same} WHERE r.{gone} LIMIT 1"
IS_MISSING = """
SELECT FROM pulse_rows r
WHERE NOT r.{gone} AND NOT EXISTS (SELECT FROM {table} t WHERE t.id = r.id AND {same}) LIMIT 1
"""
FOREIGN_ROWS = """
SELECT FROM {table} t JOIN pulse_rows r ON t.id = r.id WHERE NOT r.{gone} AND NOT {same} LIMIT 1
"""
DOUBLED = "SELECT unnest(array_agg({number})) FROM pulse_rows GROUP BY id HAVING count(*) > 1"
# Of an index of a constraint the columns are in its key, of one over expressions among what it depends on.
UNIQUE = """
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attnotnull AND EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND (i.indisunique OR i.indisexclusion)
    AND (a.attnum = ANY (i.indkey) OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
        AND d.objid = i.indexrelid AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum)))
"""
VACATE = "UPDATE {table} t SET {vacated} FROM pulse_rows r WHERE t.id = r.id"
REFERRED = "SELECT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = %s)"
OTHERS = """
SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
SAVE = (
    "CREATE TEMP TABLE pulse_saved AS SELECT t.* FROM {table} t JOIN pulse_rows r ON t.id = r.id AND {same}"
)
REMOVE = "DELETE FROM {table} t USING pulse_saved s WHERE t.id = s.id"
RESTORE = """
INSERT INTO {table} ({columns}{others}) OVERRIDING SYSTEM VALUE
SELECT {written}{saved} FROM pulse_saved s JOIN pulse_rows r ON s.id = r.id
"""
DISCARD = "DROP TABLE pulse_saved"
IS_DELETED, NUMBER = "_pulse_gone", "_pulse_number"
CONFLICTS = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)
"""Errors of a row that may be written once another one is."""


@dataclass
class Outcome:
    """Counts of the rows of a batch by outcome."""

    upserted: int = 0
    deleted: int = 0
    refused: dict[int, psycopg.Error] = field(default_factory=dict)
    """Why rows were left out, by their place in the batch."""


class Writer:
    """Writes rows to a table.

    Args:
        names: of the table and its columns in SQL.
    """

    def __init__(
        self, connection: "psycopg.Connection[Any]", target: Target, names: dict[str, sql.Composable]
    ) -> None:
        self._connection, self._target = connection, target
        columns = [column for column, _ in target.columns]
        value_columns = [sql.Identifier(column) for column in columns if column != KEY]
        assigned = sql.SQL(", ").join(
            sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in value_columns
        )
        of_rows, of_excluded = (sql.SQL(SAME).format(sql.SQL(row)) for row in ("r", "EXCLUDED"))
        self._names = names | {
            "columns": sql.SQL(", ").join(map(sql.Identifier, columns)),
            "gone": sql.Identifier(IS_DELETED),
            "number": sql.Identifier(NUMBER),
            "same": of_rows,
            "set": sql.SQL("UPDATE SET {} WHERE {}").format(assigned, of_excluded)
            if value_columns
            else sql.SQL("NOTHING"),
        }
        self._run(ROWS)

    def write(self, rows: dict[int, TextRow], deletions: set[int]) -> Outcome:
        """Write rows by their place in the batch; `pulse_rows` has those that could be read afterwards.

        Args:
            deletions: those that are deletions.
        """
        outcome = Outcome()
        try:
            with self._connection.transaction():
                self._load(rows, deletions, list(rows))
                self._run(DEFER)
                outcome.deleted = self._delete(len(deletions))
                outcome.upserted = self._upsert(len(rows) - len(deletions))
                self._run(CHECK)
        except psycopg.Error as error:
            if not answers.is_of_row(error):
                raise
            outcome = Outcome()
        else:
            return outcome
        self._divided(rows, deletions, list(rows), lambda _: 0, outcome)  # what no column takes
        readable = [place for place in rows if place not in outcome.refused]
        for place in (
            deletions & outcome.refused.keys()
        ):  # the column of the key cannot have it, so it is not there
            del outcome.refused[place]
        self._load(rows, deletions, readable)
        doubled = self._connection.execute(sql.SQL(DOUBLED).format(**self._names)).fetchall()
        outcome.refused |= {place: KeyTaken() for (place,) in doubled}
        places = [place for place in readable if place not in outcome.refused]
        outcome.deleted = self._divided(
            rows,
            deletions,
            [place for place in places if place in deletions],
            self._delete,
            outcome,
        )
        self._upserted(rows, [place for place in places if place not in deletions], outcome)
        self._load(rows, deletions, readable)
        return outcome

    def _upserted(self, rows: dict[int, TextRow], places: list[int], outcome: Outcome) -> None:
        """Upsert all rows that can be; retry conflicting ones as long as that helps."""
        while places:
            attempt = Outcome()
            outcome.upserted += self._divided(rows, set(), places, self._upsert, attempt)
            again = [place for place, error in attempt.refused.items() if isinstance(error, CONFLICTS)]
            outcome.refused |= {
                place: error for place, error in attempt.refused.items() if place not in again
            }
            if len(again) < len(places):
                places = again
                continue
            while again and not self._upsert_together(rows, again, outcome):
                blocked = self._blocked(rows, again) or {place: attempt.refused[place] for place in again}
                outcome.refused |= blocked
                again = [place for place in again if place not in blocked]
            return

    def _upsert_together(self, rows: dict[int, TextRow], places: list[int], outcome: Outcome) -> bool:
        """Write rows that take each other's unique values: first all give up theirs, then they get others."""
        for step in (self._vacated, self._replaced):
            try:
                with self._connection.transaction():
                    self._load(rows, set(), places)
                    self._run(DEFER)
                    upserted = step(len(places))
                    self._run(CHECK)
            except psycopg.Error as error:
                if not answers.is_of_row(error):
                    raise
                continue
            outcome.upserted += upserted
            return True
        return False

    def _blocked(self, rows: dict[int, TextRow], places: list[int]) -> dict[int, psycopg.Error]:
        """Why rows cannot be written even once all of them have given up their unique values.

        Nothing is written. Empty: it cannot be told which rows are at fault.
        """
        for give_up in (self._remove, self._vacate):
            attempt = Outcome()
            try:
                with self._connection.transaction(force_rollback=True):
                    self._load(rows, set(), places)
                    self._run(DEFER)
                    give_up()
                    self._divided(rows, set(), places, self._upsert, attempt)
            except psycopg.Error as error:
                if not answers.is_of_row(error):
                    raise
            if 0 < len(attempt.refused) < len(places):
                return attempt.refused
        return {}

    def _upsert(self, count: int) -> int:
        """Upsert rows of `pulse_rows`, except deletions.

        Raises:
            KeyTaken: rows of other entities have the key of some.
            LeftOut: some were not written.
        """
        upserted = self._run(UPSERT)
        # A trigger may also write another key; and of a key alone, a row that is there counts as not written.
        if (upserted != count and len(self._target.columns) > 1) or self._run(IS_MISSING):
            raise KeyTaken if self._run(FOREIGN_ROWS) else LeftOut
        return upserted

    def _delete(self, count: int) -> int:
        """Delete the rows that `pulse_rows` says. Raises LeftOut: some remain."""
        deleted = self._run(DELETE)
        if deleted != count and self._run(REMAINS):
            raise LeftOut
        return deleted

    def _vacated(self, count: int) -> int:
        """By way of nulls."""
        self._vacate()
        return self._upsert(count)

    def _vacate(self) -> None:
        written = {column for column, _ in self._target.columns} - {KEY}
        unique = self._connection.execute(UNIQUE, {"table": self._target.oid}).fetchall()
        vacated = [sql.SQL("{} = NULL").format(sql.Identifier(name)) for (name,) in unique if name in written]
        if vacated:
            self._run(VACATE, vacated=sql.SQL(", ").join(vacated))

    def _remove(self) -> None:
        self._run(SAVE)
        self._run(REMOVE)

    def _replaced(self, count: int) -> int:
        """By removing the rows and inserting them again with all columns; not if others refer to them."""
        ((referred,),) = self._connection.execute(REFERRED, [self._target.oid]).fetchall()
        if not referred:
            written = {column for column, _ in self._target.columns}
            named = self._connection.execute(OTHERS, [self._target.oid]).fetchall()
            more_columns = [sql.Identifier(name) for (name,) in named if name not in written]
            columns = [sql.SQL("r.{}").format(sql.Identifier(name)) for name, _ in self._target.columns]
            self._remove()
            self._run(
                RESTORE,
                written=sql.SQL(", ").join(columns),
                others=sql.SQL("").join(sql.SQL(", {}").format(name) for name in more_columns),
                saved=sql.SQL("").join(sql.SQL(", s.{}").format(name) for name in more_columns),
            )
            self._run(DISCARD)
        return self._upsert(count)

    def _divided(
        self,
        rows: dict[int, TextRow],
        deletions: set[int],
        places: list[int],
        step: Callable[[int], int],
        outcome: Outcome,
    ) -> int:
        """Take a step with all rows that allow it, in halves; returns how many it changed."""
        if not places:
            return 0
        try:
            with self._connection.transaction():
                self._load(rows, deletions, places)
                self._run(DEFER)
                changed = step(len(places))
                self._run(CHECK)
                return changed
        except psycopg.Error as error:
            if not answers.is_of_row(error):
                raise
            if len(places) == 1:
                outcome.refused[places[0]] = error
                return 0
        half = len(places) // 2
        return sum(
            self._divided(rows, deletions, part, step, outcome) for part in (places[:half], places[half:])
        )

    def _load(self, rows: dict[int, TextRow], deletions: set[int], places: Sequence[int]) -> None:
        self._run(CLEAR)
        key = [column for column, _ in self._target.columns].index(KEY)
        for query, deleted in ((COPY, False), (COPY_DELETED, True)):
            with self._connection.cursor().copy(sql.SQL(query).format(**self._names)) as copy:
                for place in places:
                    if (place in deletions) == deleted:
                        row = [rows[place][key]] if deleted else rows[place]
                        copy.write_row([*row, str(deleted), str(place)])

    def _run(self, query: str, **more: sql.Composable) -> int:
        return int(self._connection.execute(sql.SQL(query).format(**self._names | more)).rowcount)
