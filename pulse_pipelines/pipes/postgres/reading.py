"""Reading: the queries of a run, by the mode of its pipe, and the position in the source after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pipes import Mode
from pulse_pipelines.pipes.postgres import queries, slots, tables
from pulse_pipelines.pipes.postgres.pgoutput import Found
from pulse_pipelines.pipes.postgres.slots import Place
from pulse_pipelines.pipes.postgres.tables import Table
from pulse_pipelines.pipes.registry import Pipe
from pulse_resources.errors import UserError

BLOCKS = 4_096
"""Blocks of a table per query: 32 MiB."""
KEYS = 5_000
"""Changed rows per query."""


@dataclass(frozen=True)
class Plan:
    """What a run reads, and the position after it."""

    is_full: bool
    position: str | None
    as_of: datetime
    """The moment of the source up to which the position stands for everything."""
    queries: Sequence[str]


@dataclass(frozen=True)
class Change:
    """The changes that a run of change capture reads, and the position after them."""

    position: str
    as_of: datetime
    found: Found | None
    """None: the slot is new, and all rows are to be read."""


def changes_of(address: str, pipe: Pipe) -> Change | None:
    """Read the changes in the source's log, before the snapshot for the rows; None in other modes.

    A change that is not in the snapshot is therefore read again by the next run, and none is missed.

    Raises:
        Conflict: the pipe's position belongs to another log or slot.
        UserError: the table's changes cannot be captured.
    """
    said = pipe.definition
    if said.of_postgres.mode is not Mode.CHANGES:
        return None
    table = captured(address, pipe)
    place = None if pipe.position is None else Place.parse(pipe.position)
    if place is None:
        now = datetime.now(UTC)
        return Change(str(slots.begin(address, pipe.tenant, said, table)), now, None)
    seen = slots.look(address, pipe.tenant, said, table, place)
    return Change(str(seen.place), seen.as_of, seen.found)


def captured(address: str, pipe: Pipe) -> Table:
    """Inspect a table whose changes are captured.

    Raises:
        NotFound, UserError: it is gone, or its changes cannot be captured.
    """
    with tables.snapshot(address) as source:
        table = tables.look(source, pipe.definition)
    if table.partitioned or pipe.definition.of_postgres.key:
        raise UserError(
            "changes are captured of tables that are not partitioned, by their primary key",
            fix="Bring it by a cursor, or whole",
            pipe=pipe.name,
        )
    return table


def plan(
    source: "psycopg.Connection[Any]", pipe: Pipe, change: Change | None, moment: datetime, *, full: bool
) -> Plan:
    """Plan what a run reads in a snapshot.

    Args:
        moment: one before the snapshot.
        full: read all rows, in any mode.

    Raises:
        NotFound, UserError: the table no longer exists, or cannot be replicated.
    """
    said = pipe.definition.of_postgres
    table = tables.look(source, pipe.definition)
    is_full = full or said.mode is Mode.FULL or pipe.position is None
    if change is not None:
        found, position, as_of = change.found, change.position, change.as_of
        if found is not None and not found.whole and not full:
            return Plan(False, position, as_of, list(_changed(source, table, pipe.dataset, found)))
        return Plan(True, position, as_of, list(_stretches(source, table, pipe.dataset, ALL, ranges=True)))
    cursor = _position(source, table, said.cursor) or pipe.position
    condition = ALL if is_full else _since(source, table, pipe)
    stretches = list(_stretches(source, table, pipe.dataset, condition, ranges=is_full))
    return Plan(is_full, cursor, moment, stretches)


ALL = sql.SQL("true")
ENDLESS = "'infinity', 'Infinity', 'NaN'"


def _changed(source: "psycopg.Connection[Any]", table: Table, dataset: str, found: Found) -> Iterator[str]:
    """Queries for rows by key: keys without a row are deletions."""
    types = [tables.type_of(source, table.parts[0], column) for column in table.key]
    keys, moment = iter(sorted(found.keys)), _now()
    while some := list(islice(keys, KEYS)):
        yield queries.changed(table, types, some, dataset, moment).as_string(source)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _position(source: "psycopg.Connection[Any]", table: Table, cursor: str | None) -> str | None:
    """The highest cursor in the table that another one can follow: none follows an infinite one."""
    if cursor is None:
        return None
    source.execute(tables.SETTINGS)
    parts = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT max({0}) AS at FROM ONLY {1} WHERE {0}::text NOT IN ({2})").format(
            sql.Identifier(cursor), sql.SQL(part), sql.SQL(ENDLESS)
        )
        for part in table.parts
    )
    ((found,),) = source.execute(sql.SQL("SELECT max(at)::text FROM ({}) of_parts").format(parts)).fetchall()
    return None if found is None else str(found)


def _since(source: "psycopg.Connection[Any]", table: Table, pipe: Pipe) -> sql.Composable:
    """Condition for rows from the last position on, less the overlap: rows read again count as unchanged."""
    said, cursor = pipe.definition.of_postgres, str(pipe.definition.of_postgres.cursor)
    kind = tables.type_of(source, table.parts[0], cursor)
    least = tables.less(sql.Literal(pipe.position), kind, said.overlap)
    return sql.SQL("t.{} >= {}").format(sql.Identifier(cursor), least)


def _stretches(
    source: "psycopg.Connection[Any]",
    table: Table,
    dataset: str,
    condition: sql.Composable,
    *,
    ranges: bool,
) -> Iterator[str]:
    """Split into queries by stretches of blocks of each partition; few rows are read by one query."""
    moment = _now()
    for part in table.parts:
        ((blocks,),) = source.execute(
            "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int", [part]
        ).fetchall()
        for start in range(0, max(1, blocks), BLOCKS) if ranges else (0,):
            within = condition
            if ranges and blocks > BLOCKS:
                end = sql.SQL(" AND t.ctid < {}::tid").format(sql.Literal(f"({start + BLOCKS},0)"))
                within = sql.SQL("{} AND t.ctid >= {}::tid{}").format(
                    condition,
                    sql.Literal(f"({start},0)"),
                    end if start + BLOCKS < blocks else sql.SQL(""),
                )
            yield queries.events(table, part, dataset, moment, within).as_string(source)
