"""Sources: databases of a tenant, by name. Definitions, tables, logs and runs hold no address or credentials.

These are in a connection string in Pulse's environment, `PULSE_SOURCE__<TENANT>__<NAME>`, or in the file
`$PULSE_HOME/sources/<tenant>/<name>`, which only Pulse may read. So a tenant can name only its own sources.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pg_types import Shape, shape
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import NotFound, Transient, UserError
from pulse_resources.home import pulse_home

CONNECT_S = 10
SETTINGS = "SET LOCAL timezone = 'UTC'; SET LOCAL intervalstyle = 'iso_8601'; SET LOCAL datestyle = 'ISO'"
"""Session settings that define the text form of values."""
TABLE = """
SELECT c.oid, c.relkind::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
# For a domain its base type; for an array its element type.
COLUMNS = """
WITH RECURSIVE base AS (
    SELECT a.attnum, a.attname, a.attnotnull, a.atttypid AS oid FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, b.attname, b.attnotnull, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd')
SELECT b.attname, b.attnotnull, coalesce(e.typname, t.typname), e.oid IS NOT NULL
FROM base b JOIN pg_type t ON t.oid = b.oid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd' ORDER BY b.attnum
"""
KEYS = """
SELECT i.indisprimary, array_agg(a.attname ORDER BY k.place)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid
GROUP BY i.indexrelid, i.indisprimary
"""
LEAVES = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_partition_tree(%s) t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf ORDER BY 1
"""


@dataclass(frozen=True)
class Table:
    """A table of a source."""

    parts: tuple[str, ...]
    """Quoted SQL names: the table, or the partitions that hold its rows."""
    columns: dict[str, Shape]
    key: tuple[str, ...]
    partitioned: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its entities."""
        return {"type": "object", "properties": {name: each.schema for name, each in self.columns.items()}}


def url(tenant: Tenant, source: str) -> str:
    """The connection string of a source.

    Raises:
        NotFound: it is not configured.
        UserError: other users may read its file.
    """
    variable = f"PULSE_SOURCE__{tenant.slug.upper()}__{source.upper()}"
    if found := os.environ.get(variable):
        return found
    path = pulse_home() / "sources" / tenant.slug / source
    try:
        mode, found = path.stat().st_mode, path.read_text().strip()
    except OSError:
        raise NotFound(
            "the source has no connection string",
            fix=f"Write its connection string into {path}, or the environment of Pulse: {variable}",
            tenant=tenant.slug,
            source=source,
        ) from None
    if mode & 0o077:
        raise UserError(
            "others may read the file with the credentials of this source", fix=f"chmod 600 {path}"
        )
    return found


@contextmanager
def snapshot(address: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect read-only at REPEATABLE READ: all statements see the source at one moment.

    Raises:
        Transient: it does not answer. The error omits the address.
    """
    with connect(address) as connection:
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        yield connection


@contextmanager
def connect(address: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect in autocommit mode.

    Raises:
        Transient: the source does not answer. The error omits the address.
    """
    try:
        connection = psycopg.connect(
            address, connect_timeout=CONNECT_S, application_name="pulse", autocommit=True
        )
    except psycopg.Error as error:
        raise Transient(f"the source does not answer: {_without(address, str(error))}") from None
    with connection:
        yield connection


def _without(address: str, text: str) -> str:
    """The error's text, without the password."""
    secret = (
        psycopg.conninfo.conninfo_to_dict(address).get("password") if "=" in address or "/" in address else ""
    )
    return text.replace(str(secret), "***") if secret else text


def look(connection: "psycopg.Connection[Any]", definition: Definition) -> Table:
    """Inspect the table of a pipe.

    Raises:
        NotFound: there is no such table or column.
        UserError: it cannot be replicated, with the reason.
    """
    where = {"pipe": definition.pipe, "table": definition.table}
    found = connection.execute(TABLE, [definition.table]).fetchone()
    if found is None:
        raise NotFound("the source has no such table, or does not show it", **where)
    oid, kind, name = found
    if kind not in ("r", "p"):
        raise UserError(
            "the source is not a table",
            fix="A pipe brings tables: of a view bring what it is made of",
            **where,
        )
    described = connection.execute(COLUMNS, [oid]).fetchall()
    nullable = {column for column, required, _, _ in described if not required}
    columns = {column: shape(of, of_array=array) for column, _, of, array in described}
    if odd := [column for column in columns if column.startswith("_")]:
        raise UserError(
            f"the column {odd[0]!r} begins with _, and such properties of entities are not stored",
            fix="Rename it in the source",
            **where,
        )
    unique = connection.execute(KEYS, [oid]).fetchall()
    key = definition.key or next((tuple(of) for primary, of in unique if primary), ())
    if not key:
        raise UserError(
            "the table has no primary key to tell its rows apart",
            fix="Give it one, or name the columns of a unique index, none of them null: `key`",
            **where,
        )
    if sorted(key) not in [sorted(of) for _, of in unique] or nullable & set(key):
        raise UserError(f"no unique index says that {', '.join(key)} tells its rows apart", **where)
    if definition.cursor is not None and definition.cursor not in columns:
        raise NotFound(f"it has no column {definition.cursor}", **where)
    leaves = (name,) if kind == "r" else tuple(each for (each,) in connection.execute(LEAVES, [oid]))
    return Table(leaves, columns, key, kind == "p")


def type_of(connection: "psycopg.Connection[Any]", part: str, column: str) -> str:
    """The type of a column as its SQL name."""
    query = (
        "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s"
    )
    ((found,),) = connection.execute(query, [part, column]).fetchall()
    return str(found)


def events(table: Table, part: str, dataset: str, moment: str, condition: sql.Composable) -> sql.Composed:
    """Build a query for the keys and events of rows."""
    return sql.SQL(
        "SELECT k, json_build_object('event_id', k, 'dataset', {dataset}::text, 'timestamp', {moment}::text, "
        "'data', d)::text FROM (SELECT {key} AS k, {row} AS d FROM ONLY {part} t WHERE {condition}) e"
    ).format(
        dataset=sql.Literal(dataset),
        moment=sql.Literal(moment),
        key=_key(table.key),
        row=_object(table),
        part=sql.SQL(part),
        condition=condition,
    )


def changed(
    table: Table, types: Sequence[str], keys: Sequence[tuple[str, ...]], dataset: str, moment: str
) -> sql.Composed:
    """Build a query for the keys and events of rows by key; missing rows become deletions."""
    names = [sql.Identifier(f"c{place}") for place in range(len(types))]
    values = sql.SQL(", ").join(
        sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, key))) for key in keys
    )
    typed = [
        sql.SQL("v.{}::text::{}").format(name, sql.SQL(kind)) for name, kind in zip(names, types, strict=True)
    ]
    same = sql.SQL(" AND ").join(
        sql.SQL("t.{} = {}").format(sql.Identifier(column), value)
        for column, value in zip(table.key, typed, strict=True)
    )
    return sql.SQL(
        "SELECT k, CASE WHEN there THEN json_build_object('event_id', k, 'dataset', {dataset}::text, "
        "'timestamp', {moment}::text, 'data', d) ELSE json_build_object('event_id', k, 'dataset', "
        "{dataset}::text, 'timestamp', {moment}::text, 'data', '{{}}'::json, 'deleted', true) END::text "
        "FROM (SELECT {key} AS k, t.{first} IS NOT NULL AS there, {row} AS d "
        "FROM (VALUES {values}) v ({names}) LEFT JOIN ONLY {part} t ON {same}) e"
    ).format(
        dataset=sql.Literal(dataset),
        moment=sql.Literal(moment),
        key=_text([sql.SQL("{}::text").format(value) for value in typed]),
        first=sql.Identifier(table.key[0]),
        row=_object(table),
        values=values,
        names=sql.SQL(", ").join(names),
        part=sql.SQL(table.parts[0]),
        same=same,
    )


def _object(table: Table) -> sql.Composed:
    """A JSON object of all columns, built row by row, since a function takes at most a hundred arguments."""
    columns = (
        sql.SQL("{} AS {}").format(
            sql.SQL(each.expression.replace("{}", "t.{0}")).format(sql.Identifier(name)), sql.Identifier(name)
        )
        for name, each in table.columns.items()
    )
    return sql.SQL("(SELECT row_to_json(r) FROM (SELECT {}) r)").format(sql.SQL(", ").join(columns))


def _key(key: Sequence[str]) -> sql.Composed:
    """The `_id`: the key as text; several columns as a JSON array of texts."""
    return _text([sql.SQL("t.{}::text").format(sql.Identifier(name)) for name in key])


def _text(texts: Sequence[sql.Composed]) -> sql.Composed:
    if len(texts) == 1:
        return sql.Composed(texts)
    return sql.SQL("jsonb_build_array({})::text").format(sql.SQL(", ").join(texts))
