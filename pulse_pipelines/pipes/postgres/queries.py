"""Queries that give a source's rows as finished events: keys and JSON, written by the source itself."""

from collections.abc import Sequence

from psycopg import sql

from pulse_pipelines.pipes.postgres.tables import Table


def events(table: Table, part: str, dataset: str, moment: str, condition: sql.Composable) -> sql.Composed:
    """Build a query for the keys and events of rows.

    Args:
        moment: the timestamp of all of them, unless the table has a column of it.
    """
    at: sql.Composable = sql.SQL("{}::text").format(sql.Literal(moment))
    if table.timestamp is not None:
        at = _value(table.moment, table.timestamp)
    return sql.SQL(
        "SELECT k, json_build_object('event_id', k, 'dataset', {dataset}::text, 'timestamp', m, 'data', d)"
        "::text FROM (SELECT {key} AS k, {at} AS m, {row} AS d FROM ONLY {part} t WHERE {condition}) e"
    ).format(
        dataset=sql.Literal(dataset),
        at=at,
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
    """A JSON object of all columns, built row by row, since a function takes at most a hundred arguments.

    The column of an event's timestamp is none of them.
    """
    columns = (
        sql.SQL("{} AS {}").format(_value(each.expression, name), sql.Identifier(name))
        for name, each in table.columns.items()
        if name != table.timestamp
    )
    return sql.SQL("(SELECT row_to_json(r.*) FROM (SELECT {}) r)").format(sql.SQL(", ").join(columns))


def _value(expression: str, column: str) -> sql.Composed:
    """An expression of a column of `t`, which has {} for it."""
    return sql.SQL(expression.replace("{}", "t.{0}")).format(sql.Identifier(column))


def _key(key: Sequence[str]) -> sql.Composed:
    """The `_id`: the key as text; several columns as a JSON array of texts."""
    return _text([sql.SQL("t.{}::text").format(sql.Identifier(name)) for name in key])


def _text(texts: Sequence[sql.Composed]) -> sql.Composed:
    if len(texts) == 1:
        return sql.Composed(texts)
    return sql.SQL("jsonb_build_array({})::text").format(sql.SQL(", ").join(texts))
