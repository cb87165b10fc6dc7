"""The table of a sink: which of its columns are written, and what makes it another table than before."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.columns import Kind
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.pipes.postgres import tables
from pulse_pipelines.pipes.sinks import answers
from pulse_resources.errors import NotFound, UserError

LONGEST = 63
"""Bytes of a name in Postgres, which cuts longer ones."""
OF_SYSTEM = frozenset(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))
KEY = "id"
"""Column of the entity's `_id`."""
NAME = re.compile(r"(?:([a-z_][a-z0-9_]{0,62})\.)?([a-z_][a-z0-9_]{0,62})")
# For a domain its base type decides how a value is written.
COLUMNS = """
WITH RECURSIVE base AS (
    SELECT a.attnum, a.attname, a.attgenerated <> '' OR a.attidentity = 'a' AS own,
        format_type(a.atttypid, a.atttypmod) AS said, a.atttypid AS oid FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, b.attname, b.own, b.said, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd')
SELECT b.attname, b.said, CASE WHEN t.typcategory = 'A' THEN 'array' ELSE t.typname END, b.own
FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype <> 'd' ORDER BY b.attnum
"""
UNIQUE = """
SELECT EXISTS (SELECT FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    AND i.indexprs IS NULL AND i.indnkeyatts = 1 AND a.attname = 'id')
"""
CREATED = {
    Kind.LONG: "bigint",
    Kind.DOUBLE: "double precision",
    Kind.BOOLEAN: "boolean",
    Kind.TIMESTAMP: "timestamptz",
    Kind.DATE: "date",
    Kind.STRUCT: "jsonb",
    Kind.LIST: "jsonb",
    Kind.JSON: "jsonb",
    Kind.STRING: "text",
}
"""Types of the columns of a table that is created, by those of the dataset's."""


@dataclass(frozen=True)
class Target:
    """A table that is written."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[str, str], ...]
    """Those that are written, with what their values are written as: a type's name, or `array`."""
    form: str
    """Differs where what it has cannot be taken for what was written: another table, file or columns."""

    @property
    def quoted(self) -> sql.Identifier:
        """Its name in SQL."""
        return sql.Identifier(self.schema, self.name)

    def beside(self, name: str) -> sql.Identifier:
        """A name in SQL of another table in its schema."""
        return sql.Identifier(self.schema, name)


@answers.explained()
def look(connection: "psycopg.Connection[Any]", said: Definition, dataset: Dataset) -> Target:
    """Inspect the table of a sink; one that is not there is created, if the definition says so.

    Raises:
        NotFound: there is no such table.
        UserError: entities cannot be written there.
    """
    where = {"pipe": said.pipe, "table": str(said.sink.table)}
    found = tables.find(connection, said.sink.table)
    if found is None and said.sink.create:
        _create(connection, said, dataset)
        found = tables.find(connection, said.sink.table)
    if found is None:
        raise NotFound(
            "the sink has no such table, or does not show it",
            fix="Make it, with a column id that is its key; or say `create: true`",
            **where,
        )
    oid, kind, schema, name, file = found
    if kind not in ("r", "p"):
        raise UserError("the sink is not a table", **where)
    described = connection.execute(COLUMNS, [oid]).fetchall()
    ((keyed,),) = connection.execute(UNIQUE, [oid]).fetchall()
    if not keyed:
        raise UserError(
            "the table has no column id with a unique index of its own",
            fix="The _id of an entity is written there: make it the primary key",
            **where,
        )
    fields = {column.field for column in dataset.columns}
    _check_names(fields, {column for column, *_ in described}, where)
    written = {
        column: (type_, kind)
        for column, type_, kind, own in described
        if column == KEY or (column in fields and not own)
    }
    form = hashlib.sha256(json.dumps([oid, file, written]).encode()).hexdigest()[:32]
    columns = tuple((column, kind) for column, (_, kind) in written.items())
    return Target(oid, schema, name, columns, form)


def _check_names(fields: set[str], there: set[str], where: Mapping[str, str]) -> None:
    """Raise UserError if a column is there by a name that Postgres has cut: it would stay null."""
    cut = {field[:LONGEST]: field for field in sorted(fields) if len(field) > LONGEST}
    for column in sorted(there & cut.keys() - fields):
        raise UserError(
            f"Postgres has cut the name of {cut[column]}: the table's column is {column}",
            fix="Drop the column, or give the property a name of 63 bytes at most",
            **where,
        )


def _create(connection: "psycopg.Connection[Any]", said: Definition, dataset: Dataset) -> None:
    named = NAME.fullmatch(str(said.sink.table))
    if named is None:
        raise UserError(
            "a table is created by a name of small letters, digits and _, with its schema before a dot",
            table=str(said.sink.table),
        )
    for column in dataset.columns:
        if len(column.field) > LONGEST or column.field.lower() in OF_SYSTEM:
            why = (
                "is longer than 63 bytes"
                if len(column.field) > LONGEST
                else "is one of Postgres' own columns"
            )
            raise UserError(
                f"no table of Postgres has a column {column.field}: the name {why}",
                fix="Make the table yourself, with the columns that it is to have, without `create`",
                table=str(said.sink.table),
            )
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(column.field), sql.SQL(CREATED[column.type.kind]))
        for column in dataset.columns
        if column.field != KEY
    ]
    name = sql.Identifier(*(part for part in named.groups() if part))
    listed = sql.SQL(", ").join([sql.SQL("id text PRIMARY KEY"), *columns])
    try:
        connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(name, listed))
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise UserError(
            f"the sink does not create the table: {answers.said(error)} ({error.diag.sqlstate})",
            fix="The role of its address needs the right to, and the schema has to be there",
            table=str(said.sink.table),
        ) from None
