"""Tables of a source: their columns, keys and partitions, as they are at one moment."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pulse_pipelines.domain.pg_types import Shape, moment, shape
from pulse_pipelines.domain.pipes import Definition
from pulse_resources.errors import NotFound, UserError

_WITH_NAN = frozenset({"real", "double precision", "numeric"})
_INTEGERS = {"smallint": 16, "integer": 32, "bigint": 64}
"""Types of integers, and their bits."""
TABLE = """
SELECT c.oid, c.relkind::text AS kind, n.nspname AS schema, c.relname AS name, c.relfilenode AS file
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
# For a domain its base type; for an array its element type. A type of the source's own may have the name of
# one of Postgres', and is none of it. Rows from before a constraint that is not valid may have nulls.
COLUMNS = """
WITH RECURSIVE base (attnum, attname, oid, is_required) AS (
    SELECT a.attnum, a.attname, a.atttypid AS oid, a.attnotnull AND NOT EXISTS (
        SELECT FROM pg_constraint c WHERE c.conrelid = a.attrelid AND c.contype = 'n' AND NOT c.convalidated
            AND a.attnum = ANY (c.conkey))
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, b.attname, t.typbasetype, b.is_required FROM base b JOIN pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd')
SELECT b.attname, b.is_required, CASE coalesce(e.typnamespace, t.typnamespace)
    WHEN 'pg_catalog'::regnamespace THEN coalesce(e.typname, t.typname) ELSE '' END, e.oid IS NOT NULL
FROM base b JOIN pg_type t ON t.oid = b.oid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd' ORDER BY b.attnum
"""
# With -1, not NULL: `character` would be as `char(1)`, and `bpchar` has no length.
TYPE = """
WITH RECURSIVE base AS (
    SELECT atttypid AS oid FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s
    UNION ALL
    SELECT t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd')
SELECT format_type(b.oid, -1) FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype <> 'd'
"""
KEYS = """
SELECT i.indisprimary, array_agg(a.attname ORDER BY k.place)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid
    AND k.place <= i.indnkeyatts  -- beyond are columns that it only includes
GROUP BY i.indexrelid, i.indisprimary
"""
# The table, and the partitions that hold its rows.
PARTS = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relkind::text,
    EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid), row_security_active(c.oid),
    has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %(oid)s
    OR c.relkind <> 'p' AND c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s) WHERE isleaf)
ORDER BY c.oid <> %(oid)s, 1
"""


@dataclass(frozen=True)
class Table:
    """A table of a source."""

    parts: tuple[str, ...]
    """Quoted SQL names: the table, or the partitions that hold its rows."""
    columns: dict[str, Shape]
    key: tuple[str, ...]
    partitioned: bool = False
    timestamp: str | None = None
    """Column that is the time of an event, and no member of its data; None: rows are entities ..."""
    moment: str = ""
    """... and SQL of it, with {} for the column."""
    name: str = ""
    """Quoted SQL name of the table itself."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its entities."""
        return {
            "type": "object",
            "properties": {name: column.schema for name, column in self.columns.items()},
        }


class Relation(NamedTuple):
    """A relation of a database."""

    oid: int
    kind: str
    """As `pg_class` has it: r for a table, p for a partitioned one."""
    schema: str
    name: str
    file: int
    """File of its rows: another one after a rewrite."""

    @property
    def quoted(self) -> sql.Identifier:
        """Its name in SQL."""
        return sql.Identifier(self.schema, self.name)


def find(connection: "psycopg.Connection[Any]", name: str | None) -> Relation | None:
    """Find a relation by a name as people write it; None if it does not exist, or the name is invalid."""
    try:
        with connection.cursor(row_factory=class_row(Relation)) as cursor:
            return cursor.execute(TABLE, [name]).fetchone()
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError):
        return None


def inspect(connection: "psycopg.Connection[Any]", definition: Definition) -> Table:
    """Inspect the table of a pipe.

    Raises:
        NotFound: there is no such table or column.
        UserError: it cannot be replicated, with the reason.
    """
    source_table = definition.of_postgres
    where = {"pipe": definition.pipe, "table": source_table.table}
    relation = find(connection, source_table.table)
    if relation is None:
        raise NotFound("the source has no such table, or does not show it", **where)
    oid, kind = relation.oid, relation.kind
    if kind not in ("r", "p"):
        raise UserError(
            "the source is not a table",
            fix="A pipe reads tables: name the tables that the view reads",
            **where,
        )
    whole = relation.quoted.as_string(connection)
    leaves = _parts(connection, oid, where)
    described = connection.execute(COLUMNS, [oid]).fetchall()
    nullable = {column for column, required, _, _ in described if not required}
    columns = {column: shape(of, of_array=array) for column, _, of, array in described}
    odd = [column for column in columns if column.startswith("_")]
    if odd and source_table.timestamp is None:
        raise UserError(
            f"the column {odd[0]!r} begins with _, and such properties of entities are not stored",
            fix="Rename it in the source",
            **where,
        )
    unique = connection.execute(KEYS, [oid]).fetchall()
    key = source_table.key or next((tuple(of) for primary, of in unique if primary), ())
    if not key:
        raise UserError(
            "the table has no primary key to identify its rows",
            fix="Give it one, or name the columns of a unique index, none of them null: `key`",
            **where,
        )
    if sorted(key) not in [sorted(of) for _, of in unique] or nullable & set(key):
        raise UserError(f"no unique index shows that {', '.join(key)} identifies its rows", **where)
    if source_table.cursor is not None and source_table.cursor not in columns:
        raise NotFound(f"it has no column {source_table.cursor}", **where)
    moments = {column: None if array else moment(of) for column, _, of, array in described}
    if source_table.timestamp is not None and source_table.timestamp not in columns:
        raise NotFound(f"it has no column {source_table.timestamp}, which is the events' timestamp", **where)
    if source_table.timestamp is not None and moments[source_table.timestamp] is None:
        raise UserError(
            f"the column {source_table.timestamp} is not a time, and cannot be the events' timestamp",
            fix="Name a column of timestamptz, timestamp or date",
            **where,
        )
    if source_table.cursor is not None and source_table.overlap is not None:
        of_cursor = type_of(connection, whole, source_table.cursor)
        begin = sql.Literal("2000-01-01" if _is_time(of_cursor) else "0")
        earlier = less(begin, of_cursor, source_table.overlap)
        try:
            row = connection.execute(sql.SQL("SELECT {} <= {}").format(earlier, begin)).fetchone()
        except (psycopg.DataError, psycopg.ProgrammingError):
            row = None
        if row != (True,):
            raise UserError(
                f"{source_table.overlap[:100]!r} is not a distance before the cursor {source_table.cursor}",
                fix="Write an interval for a cursor of dates or timestamps (10 minutes), a number for one of"
                " numbers, neither below zero",
                **where,
            )
    at = source_table.timestamp and moments[source_table.timestamp]
    leaves = (whole,) if kind == "r" else leaves
    return Table(leaves, columns, key, kind == "p", source_table.timestamp, at or "", whole)


def _parts(connection: "psycopg.Connection[Any]", oid: int, where: dict[str, str]) -> tuple[str, ...]:
    """The table, or the partitions that hold its rows, if all of its rows can be read there."""
    parts = []
    for part, kind, inherited, filtered, readable in connection.execute(PARTS, {"oid": oid}):
        if kind == "r" and inherited:
            raise UserError(
                "the table has children (INHERITS), whose rows do not share its key",
                fix="Create a pipe for each child, or make them partitions: ALTER TABLE ... ATTACH PARTITION",
                **where,
            )
        if kind == "f":
            raise UserError(
                f"its partition {part} is a foreign table, which is read elsewhere, at another moment",
                fix="Create pipes for the other partitions, and for the table that it stands for",
                **where,
            )
        if not readable:
            raise UserError(
                f"the role may not read {part}",
                fix=f"GRANT SELECT ON {part} to the role of the source",
                **where,
            )
        if filtered:
            raise UserError(
                f"row-level security can hide rows of {part} from the role: they would count as deleted",
                fix="Give the role BYPASSRLS, or have the source named with a role that owns the table",
                **where,
            )
        if kind == "r":
            parts.append(str(part))
    return tuple(parts)


def less(at: sql.Literal, kind: str, overlap: str | None) -> sql.Composable:
    """A cursor of this type (see `type_of`) less the overlap, as SQL."""
    value = sql.SQL("{}::{}").format(at, sql.SQL(kind))
    if overlap is None:
        return value
    distance = sql.SQL("{}::{}").format(sql.Literal(overlap), sql.SQL("interval" if _is_time(kind) else kind))
    if (bits := _INTEGERS.get(kind)) is None:
        return sql.SQL("{} - {}").format(value, distance)
    # The difference may be below the least integer of the type, which is then where it begins.
    return sql.SQL("greatest({}::numeric - {}, {})::{}").format(
        value, distance, sql.Literal(-(2 ** (bits - 1))), sql.SQL(kind)
    )


def finite(value: sql.Composable, kind: str) -> sql.Composable:
    """Condition that a value of this type (see `type_of`) is neither infinite nor NaN; null if it is null."""
    if _is_time(kind) or kind == "interval":
        return sql.SQL("isfinite({})").format(value)
    if kind in _WITH_NAN:
        return sql.SQL("{} NOT IN ('NaN', 'Infinity', '-Infinity')").format(value)
    return sql.SQL("true")


def lowest(kind: str) -> str | None:
    """The infinite value of this type (see `type_of`) that is below all others; None: it has none."""
    if _is_time(kind):
        return "-infinity"
    return "-Infinity" if kind in _WITH_NAN else None


def _is_time(kind: str) -> bool:
    return kind.startswith("timestamp") or kind == "date"


def type_of(connection: "psycopg.Connection[Any]", part: str, column: str) -> str:
    """The type of a column as its SQL name, without a length; of a domain its base type."""
    ((name,),) = connection.execute(TYPE, [part, column]).fetchall()
    return str(name)
