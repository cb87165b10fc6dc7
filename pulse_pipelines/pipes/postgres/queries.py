"""Queries that give a source's rows as finished events: keys and JSON, written by the source itself."""

from collections.abc import Sequence
from typing import LiteralString

from psycopg import sql

from pulse_pipelines.pipes.postgres.tables import Table
from pulse_pipelines.pipes.rows import EXCERPT_BYTES, LONGEST

_EVENT = "json_build_object('event_id', k, 'dataset', {dataset}::text, 'timestamp', m, 'data', d)"
_DELETION = """json_build_object('event_id', k, 'dataset', {dataset}::text, 'timestamp', m,
    'data', '{{}}'::json, 'deleted', true)"""
# OFFSET 0 has the event made once. One that is surely too large is not made: Postgres might fail at it.
_CUT = """
SELECT k, CASE WHEN octet_length(e) <= {longest} THEN e ELSE json_build_object(
    'event_id', k, 'dataset', {dataset}::text, 'timestamp', m, 'context', json_build_object(
        'table', {table}::text, 'error', 'the row has ' ||
            to_char(coalesce(octet_length(e), size), 'FM999,999,999,999') || ' bytes'),
    'data', left(e, {kept}))::text END
FROM (SELECT k, m, size, ({event})::text AS e FROM ({rows}) r OFFSET 0) s
"""


def events(table: Table, part: str, dataset: str, moment: str, condition: sql.Composable) -> sql.Composed:
    """Build a query for the keys and events of rows.

    A row that is too large to be sent becomes an event without its data, which is a dead letter: the row does
    not leave its source.

    Args:
        moment: the timestamp of all of them, unless the table has a column of it.
    """
    at: sql.Composable = _text_of(moment)
    if table.timestamp is not None:
        at = _value(table.moment, table.timestamp)
    rows = sql.SQL(
        "SELECT {key} AS k, {at} AS m, {row} AS d, {size} AS size FROM ONLY {part} t WHERE {condition}"
    ).format(
        at=at,
        key=_key(table.key),
        row=_object(table),
        size=_size(table),
        part=sql.SQL(part),
        condition=condition,
    )
    return _cut("CASE WHEN size <= {longest} THEN " + _EVENT + " END", rows, part, dataset)


def changed(
    table: Table, types: Sequence[str], keys: Sequence[tuple[str | None, ...]], dataset: str, moment: str
) -> sql.Composed:
    """Build a query for the keys and events of rows by key; missing rows become deletions.

    Rows are found by the value of a key, which an index serves, and are it only if its text is the same:
    `1.0` is gone once it is `1.00`, and so is `n1` in a collation for which it equals `N1`.

    Args:
        types: of the key's columns, by `tables.type_of`.
    """
    names = [sql.Identifier(f"c{place}") for place in range(len(types))]
    values = sql.SQL(", ").join(
        sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, key))) for key in keys
    )
    typed = [
        sql.SQL("v.{}::text::{}").format(name, sql.SQL(kind)) for name, kind in zip(names, types, strict=True)
    ]
    same = sql.SQL(" AND ").join(
        sql.SQL('t.{0} = {1} AND t.{0}::text COLLATE "C" = {1}::text COLLATE "C"').format(
            sql.Identifier(column), value
        )
        for column, value in zip(table.key, typed, strict=True)
    )
    rows = sql.SQL(
        "SELECT {key} AS k, {at} AS m, t.ctid IS NOT NULL AS there, {row} AS d, {size} AS size "
        "FROM (VALUES {values}) v ({names}) LEFT JOIN ONLY {part} t ON {same}"
    ).format(
        key=_text([sql.SQL("{}::text").format(value) for value in typed]),
        at=_text_of(moment),
        row=_object(table),
        size=_size(table),
        values=values,
        names=sql.SQL(", ").join(names),
        part=sql.SQL(table.parts[0]),
        same=same,
    )
    event = f"CASE WHEN NOT there THEN {_DELETION} WHEN size <= {{longest}} THEN {_EVENT} END"
    return _cut(event, rows, table.parts[0], dataset)


def _cut(event: LiteralString, rows: sql.Composed, part: str, dataset: str) -> sql.Composed:
    names: dict[str, sql.Composable] = {"dataset": sql.Literal(dataset), "longest": sql.Literal(LONGEST)}
    event_query = sql.SQL(event).format(**names)
    return sql.SQL(_CUT).format(
        **names, table=sql.Literal(part), kept=sql.Literal(EXCERPT_BYTES), event=event_query, rows=rows
    )


def _size(table: Table) -> sql.Composable:
    """Bytes of a row's texts, at least."""
    sizes = [
        sql.SQL("coalesce(octet_length(t.{}), 0)::bigint").format(sql.Identifier(name))
        for name, column in table.columns.items()
        if column.is_sized
    ]
    return sql.SQL(" + ").join(sizes) if sizes else sql.SQL("0")


def _object(table: Table) -> sql.Composed:
    """A JSON object of all columns, built row by row, since a function takes at most a hundred arguments.

    The column of an event's timestamp is none of them.
    """
    columns = (
        sql.SQL("{} AS {}").format(_value(column.expression, name), sql.Identifier(name))
        for name, column in table.columns.items()
        if name != table.timestamp
    )
    return sql.SQL("(SELECT row_to_json(r.*) FROM (SELECT {}) r)").format(sql.SQL(", ").join(columns))


def _value(expression: str, column: str) -> sql.Composed:
    """An expression of a column of `t`, which has {} for it."""
    return sql.SQL(expression.replace("{}", "t.{0}")).format(sql.Identifier(column))


def _text_of(moment: str) -> sql.Composed:
    return sql.SQL("{}::text").format(sql.Literal(moment))


def _key(key: Sequence[str]) -> sql.Composed:
    """The `_id`: the key as text; several columns as a JSON array of texts."""
    return _text([sql.SQL("t.{}::text").format(sql.Identifier(name)) for name in key])


def _text(texts: Sequence[sql.Composed]) -> sql.Composed:
    if len(texts) == 1:
        return sql.Composed(texts)
    return sql.SQL("jsonb_build_array({})::text").format(sql.SQL(", ").join(texts))
