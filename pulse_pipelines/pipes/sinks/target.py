"""The table of a sink: its written columns, and how a changed table is recognized."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_pipelines.domain.schemas.shapes import Shapes
from pulse_pipelines.pipes.postgres import tables
from pulse_pipelines.pipes.sinks import answers
from pulse_pipelines.pipes.sinks.column_kinds import ColumnKinds
from pulse_resources.errors import NotFound, UserError

LONGEST = 63
"""Bytes of a name in Postgres, which cuts longer ones."""
OF_SYSTEM = frozenset(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))
KEY = "id"
"""Column of the entity's `_id`."""
NAME = re.compile(r"(?:([a-z_][a-z0-9_]{0,62})\.)?([a-z_][a-z0-9_]{0,62})")
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), atttypid::bigint, atttypmod,
    attgenerated <> '' OR attidentity = 'a'
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# What Postgres empties after a crash; rows of other tables that a DELETE would take, too; a foreign key by
# which what happens to other rows deletes or changes those of the table.
STATE = """
SELECT c.relpersistence = 'u', c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid), (
    SELECT min(f.conname) FROM pg_constraint f WHERE f.contype = 'f'
        AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd'))
        AND (f.conrelid = c.oid OR f.conrelid IN (SELECT relid FROM pg_partition_tree(c.oid))))
FROM pg_class c WHERE c.oid = %s
"""
# The files of its rows, each another one after a rewrite: its own, or those of its partitions.
PARTS = """
SELECT c.oid::bigint, c.relfilenode::bigint FROM pg_partition_tree(%s) t JOIN pg_class c ON c.oid = t.relid
WHERE t.isleaf ORDER BY c.oid
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
    """Columns that are written, with the form of their values: see `texts.text`."""
    form: str
    """Fingerprint of the table, its files and columns: with another one, the rows may not be Pulse's."""

    @property
    def quoted(self) -> sql.Identifier:
        """Its name in SQL."""
        return sql.Identifier(self.schema, self.name)

    def beside(self, name: str) -> sql.Identifier:
        """A name in SQL of another table in its schema."""
        return sql.Identifier(self.schema, name)


@answers.explained()
def inspect(connection: "psycopg.Connection[Any]", definition: Definition, dataset: Dataset) -> Target:
    """Inspect the table of a sink; with `create` in the definition, a missing one is created.

    Raises:
        NotFound: there is no such table.
        UserError: entities cannot be written there.
    """
    where = {"pipe": definition.pipe, "table": str(definition.sink.table)}
    relation = tables.find(connection, definition.sink.table)
    if relation is None and definition.sink.create:
        _create(connection, definition, dataset)
        relation = tables.find(connection, definition.sink.table)
    if relation is None:
        raise NotFound(
            "the sink has no such table, or the role cannot see it",
            fix="Create it, with a column id as its key; or write `create: true`",
            **where,
        )
    oid, kind, schema, name, file = relation
    if kind not in ("r", "p"):
        raise UserError("the sink is not a table", **where)
    _check_state(connection, oid, where)
    described = connection.execute(COLUMNS, [oid]).fetchall()
    ((keyed,),) = connection.execute(UNIQUE, [oid]).fetchall()
    if not keyed:
        raise UserError(
            "the table has no column id with a unique index of its own",
            fix="The _id of an entity is written there: make it the primary key",
            **where,
        )
    if (KEY, True) in {(column, is_generated) for column, *_, is_generated in described}:
        raise UserError(
            "Postgres generates the column id, and lets no one write it",
            fix="The _id of an entity is written there: let it be a plain column",
            **where,
        )
    fields = _properties(dataset)
    _check_names(fields, {column for column, *_ in described}, where)
    kinds_of = ColumnKinds(connection, [type_oid for _, _, type_oid, *_ in described])
    written = {
        column: (type_, kinds_of.of(type_oid, modifier))
        for column, type_, type_oid, modifier, is_generated in described
        if column == KEY or (column in fields and not is_generated)
    }
    kinds = {column: (type_, kind.partition(" ")[0]) for column, (type_, kind) in written.items()}
    files = connection.execute(PARTS, [oid]).fetchall() if kind == "p" else file
    form = hashlib.sha256(json.dumps([oid, files, kinds]).encode()).hexdigest()[:32]
    columns = tuple((column, kind) for column, (_, kind) in written.items())
    return Target(oid, schema, name, columns, form)


def _properties(dataset: Dataset) -> set[str]:
    """Names of the declared properties: also of those that the dataset's table has in `_extra`."""
    root = bundled(json.loads(dataset.document))
    return {*Shapes(root).of(root).members, *(column.field for column in dataset.columns)}


def _check_state(connection: "psycopg.Connection[Any]", oid: int, where: Mapping[str, str]) -> None:
    """Raise UserError if the table would not stay as it is written, or others with it."""
    ((is_unlogged, has_children, reference),) = connection.execute(STATE, [oid]).fetchall()
    if is_unlogged:
        raise UserError(
            "the table is unlogged: Postgres empties it after a crash, and the pipe would not know",
            fix="ALTER TABLE ... SET LOGGED",
            **where,
        )
    if has_children:
        raise UserError(
            "the table has children (INHERITS), whose rows the pipe would delete with its own",
            fix="Name a table of its own, or make the children partitions",
            **where,
        )
    if reference is not None:
        raise UserError(
            f"the foreign key {reference} deletes or changes rows with those that they refer to:"
            " the pipe would not know",
            fix="Let it refuse instead: ON DELETE NO ACTION, ON UPDATE NO ACTION",
            **where,
        )


def _check_names(fields: set[str], existing: set[str], where: Mapping[str, str]) -> None:
    """Raise UserError if a column has a name that Postgres has truncated: it would stay null."""
    long = {field: field.encode() for field in sorted(fields) if len(field.encode()) > LONGEST}
    cut = {name[:LONGEST].decode(errors="ignore"): field for field, name in long.items()}
    for column in sorted(existing & cut.keys() - fields):
        raise UserError(
            f"Postgres has cut the name of {cut[column]}: the table's column is {column}",
            fix="Drop the column, or give the property a name of 63 bytes at most",
            **where,
        )


def _create(connection: "psycopg.Connection[Any]", definition: Definition, dataset: Dataset) -> None:
    named = NAME.fullmatch(str(definition.sink.table))
    if named is None:
        raise UserError(
            "a created table has a name of lower-case letters, digits and _, with its schema before a dot",
            table=str(definition.sink.table),
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
                fix="Create the table yourself, with the columns that you need, without `create`",
                table=str(definition.sink.table),
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
            f"the sink does not create the table: {answers.error_text(error)} ({error.diag.sqlstate})",
            fix="The role of its address needs the right to, and the schema has to be there",
            table=str(definition.sink.table),
        ) from None
