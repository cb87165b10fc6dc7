"""Tables of a source, as they are at one moment, and the lock that a run holds there."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pg_types import Shape, moment, shape
from pulse_pipelines.domain.pipes import Definition
from pulse_resources.errors import NotFound, Transient, UserError

ANSWERS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Unless the connection string says otherwise: a source that vanished does not hold up a run for hours."""
_TELLABLE = re.compile(
    r"FATAL: .*|Connection refused|[Tt]ime(d )?out|Name or service not known|No route to host|"
    r"Network is unreachable|server closed the connection|certificate verify failed|SSL is required"
)
_WITH_NAN = frozenset({"real", "double precision", "numeric"})
_NAMED = re.compile(r'"[^"]*"')
SETTINGS = "SET LOCAL timezone = 'UTC'; SET LOCAL intervalstyle = 'iso_8601'; SET LOCAL datestyle = 'ISO'"
"""Session settings that define the text form of values."""
TABLE = """
SELECT c.oid, c.relkind::text, n.nspname, c.relname, c.relfilenode
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
# First exclusive, then shared: nobody else has it at that moment, and tasks can join.
ALONE = """
SELECT CASE WHEN pg_try_advisory_lock(hashtextextended(%(key)s, 0))
    THEN pg_try_advisory_lock_shared(hashtextextended(%(key)s, 0))
        AND pg_advisory_unlock(hashtextextended(%(key)s, 0))
    ELSE false END
"""
JOIN = "SELECT pg_advisory_lock_shared(hashtextextended(%(key)s, 0))"
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
    timestamp: str | None = None
    """Column that is the time of an event, and no member of its data; None: rows are entities ..."""
    moment: str = ""
    """... and SQL of it, with {} for the column."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its entities."""
        return {"type": "object", "properties": {name: each.schema for name, each in self.columns.items()}}


@contextmanager
def snapshot(address: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect read-only at REPEATABLE READ: all statements see the source at one moment.

    Raises:
        Transient: it does not answer. The error omits the address.
    """
    with connect(address) as connection:
        freeze(connection)
        yield connection


def freeze(connection: "psycopg.Connection[Any]") -> None:
    """Have the following statements see the source at one moment, that of the first of them."""
    connection.autocommit = False
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True


def begin_alone(connection: "psycopg.Connection[Any]", of: UUID | str) -> None:
    """Hold a pipe in its source, or sink, for as long as this connection lasts.

    A run that died may have left tasks that still send rows, older than what the next run sends: so the
    next one begins once their connections have ended. A lock in Pulse's Postgres would not tell.

    Args:
        of: the dataset that it brings; of a pipe with a sink the pipe.

    Raises:
        Transient: another run, or a task of one, holds it.
    """
    ((alone,),) = connection.execute(ALONE, {"key": f"pulse-pipe/{of}"}).fetchall()
    if not alone:
        raise Transient(
            "rows of an earlier run of the pipe are still on their way",
            fix="It is tried again; pg_locks there shows who holds an advisory lock",
        )


def join_run(connection: "psycopg.Connection[Any]", dataset_id: UUID, exported: str) -> None:
    """See the source as the run does that exported this snapshot, and hold its pipe, too.

    The lock comes first: while the snapshot is there, its run is, and no other one can have begun.

    Raises:
        psycopg.Error: the run has ended.
    """
    connection.execute(JOIN, {"key": f"pulse-pipe/{dataset_id}"})
    freeze(connection)
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))
    connection.execute(SETTINGS)


@contextmanager
def connect(address: str) -> "Iterator[psycopg.Connection[Any]]":
    """Connect in autocommit mode.

    Raises:
        Transient: the source does not answer. The error omits the address.
        UserError: the connection string is malformed.
    """
    try:
        given = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:
        raise UserError("the connection string of the source is malformed") from None
    try:
        known: dict[str, Any] = {**ANSWERS, **given}
        conninfo = psycopg.conninfo.make_conninfo(**known)
        connection = psycopg.connect(conninfo, application_name="pulse", autocommit=True)
    except psycopg.Error as error:
        raise Transient(f"the source does not answer: {_said(str(error))}") from None
    with connection:
        yield connection


def _said(text: str) -> str:
    """What may be told of an error: a malformed string can put the password into any part of it."""
    found = _TELLABLE.search(text)
    return _NAMED.sub("...", found[0]) if found else "it cannot be connected to"


class Found(NamedTuple):
    """A relation of a database."""

    oid: int
    kind: str
    """As `pg_class` has it: r for a table, p for a partitioned one."""
    schema: str
    name: str
    file: int
    """Of its rows: another one after a rewrite."""

    @property
    def quoted(self) -> sql.Identifier:
        """Its name in SQL."""
        return sql.Identifier(self.schema, self.name)


def find(connection: "psycopg.Connection[Any]", name: str | None) -> Found | None:
    """Find a relation by a name as people write it; None: there is none, or it is no name."""
    try:
        row = connection.execute(TABLE, [name]).fetchone()
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError):
        return None
    return None if row is None else Found(*row)


def look(connection: "psycopg.Connection[Any]", definition: Definition) -> Table:
    """Inspect the table of a pipe.

    Raises:
        NotFound: there is no such table or column.
        UserError: it cannot be replicated, with the reason.
    """
    said = definition.of_postgres
    where = {"pipe": definition.pipe, "table": said.table}
    found = find(connection, said.table)
    if found is None:
        raise NotFound("the source has no such table, or does not show it", **where)
    oid, kind = found.oid, found.kind
    if kind not in ("r", "p"):
        raise UserError(
            "the source is not a table",
            fix="A pipe brings tables: of a view bring what it is made of",
            **where,
        )
    described = connection.execute(COLUMNS, [oid]).fetchall()
    nullable = {column for column, required, _, _ in described if not required}
    columns = {column: shape(of, of_array=array) for column, _, of, array in described}
    odd = [column for column in columns if column.startswith("_")]
    if odd and said.timestamp is None:
        raise UserError(
            f"the column {odd[0]!r} begins with _, and such properties of entities are not stored",
            fix="Rename it in the source",
            **where,
        )
    unique = connection.execute(KEYS, [oid]).fetchall()
    key = said.key or next((tuple(of) for primary, of in unique if primary), ())
    if not key:
        raise UserError(
            "the table has no primary key to tell its rows apart",
            fix="Give it one, or name the columns of a unique index, none of them null: `key`",
            **where,
        )
    if sorted(key) not in [sorted(of) for _, of in unique] or nullable & set(key):
        raise UserError(f"no unique index says that {', '.join(key)} tells its rows apart", **where)
    if said.cursor is not None and said.cursor not in columns:
        raise NotFound(f"it has no column {said.cursor}", **where)
    moments = {column: None if array else moment(of) for column, _, of, array in described}
    if said.timestamp is not None and said.timestamp not in columns:
        raise NotFound(f"it has no column {said.timestamp}, which is the events' timestamp", **where)
    if said.timestamp is not None and moments[said.timestamp] is None:
        raise UserError(
            f"the column {said.timestamp} is no time, and cannot be the events' timestamp",
            fix="Name a column of timestamptz, timestamp or date",
            **where,
        )
    whole = found.quoted.as_string(connection)
    if said.cursor is not None and said.overlap is not None:
        of_cursor = type_of(connection, whole, said.cursor)
        begin = sql.Literal("2000-01-01" if _is_time(of_cursor) else "0")
        earlier = less(begin, of_cursor, said.overlap)
        try:
            row = connection.execute(sql.SQL("SELECT {} <= {}").format(earlier, begin)).fetchone()
        except (psycopg.DataError, psycopg.ProgrammingError):
            row = None
        if row != (True,):
            raise UserError(
                f"{said.overlap[:100]!r} is not how far a run can begin before the cursor {said.cursor}",
                fix="Write an interval for a cursor of dates or timestamps (10 minutes), a number for one of"
                " numbers, neither below zero",
                **where,
            )
    leaves = (whole,) if kind == "r" else tuple(each for (each,) in connection.execute(LEAVES, [oid]))
    at = said.timestamp and moments[said.timestamp]
    return Table(leaves, columns, key, kind == "p", said.timestamp, at or "")


def less(at: sql.Literal, kind: str, overlap: str | None) -> sql.Composable:
    """A cursor of this type (see `type_of`) less the overlap, as SQL."""
    value = sql.SQL("{}::{}").format(at, sql.SQL(kind))
    if overlap is None:
        return value
    unit = sql.SQL("interval" if _is_time(kind) else kind)
    return sql.SQL("{} - {}::{}").format(value, sql.Literal(overlap), unit)


def finite(value: sql.Composable, kind: str) -> sql.Composable:
    """Condition that a value of this type (see `type_of`) is neither infinite nor NaN; null if it is null."""
    if _is_time(kind):
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
    ((found,),) = connection.execute(TYPE, [part, column]).fetchall()
    return str(found)
