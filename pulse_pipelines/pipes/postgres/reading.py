"""Reading: the queries of a run, by the mode of its pipe, and the position in the source after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pipes import Mode
from pulse_pipelines.pipes.postgres import queries, sessions, slots, tables
from pulse_pipelines.pipes.postgres.cursors import Cursor
from pulse_pipelines.pipes.postgres.pgoutput import Found
from pulse_pipelines.pipes.postgres.slots import Place
from pulse_pipelines.pipes.postgres.tables import Table
from pulse_pipelines.pipes.registry import Pipe
from pulse_resources.errors import UserError

LEAST_BLOCKS = 512
BLOCKS = 4_096
"""Blocks of a table per query, at least and at most: 4 and 32 MiB. Within these, a query for each task."""
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
    with sessions.snapshot(address) as source:
        table = tables.look(source, pipe.definition)
    if table.partitioned or pipe.definition.of_postgres.key:
        raise UserError(
            "changes are captured of tables that are not partitioned, by their primary key",
            fix="Bring it by a cursor, or whole",
            pipe=pipe.name,
        )
    return table


def plan(
    source: "psycopg.Connection[Any]",
    pipe: Pipe,
    change: Change | None,
    moment: datetime,
    parallelism: int,
    *,
    full: bool,
) -> Plan:
    """Plan what a run reads in a snapshot.

    Args:
        moment: one before the snapshot.
        parallelism: how many tasks share the queries.
        full: read all rows, in any mode.

    Raises:
        NotFound, UserError: the table no longer exists, or cannot be replicated.
    """
    said = pipe.definition.of_postgres
    table = tables.look(source, pipe.definition)
    is_full, position, as_of, condition = True, pipe.position, moment, ALL
    if change is not None:
        position, as_of, found = change.position, change.as_of, change.found
        if found is not None and not found.whole and not full:
            return Plan(False, position, as_of, list(_changed(source, table, pipe.dataset, found)))
    elif said.cursor is not None:
        cursor = Cursor.of(source, table, said.cursor)
        last = cursor.known(source, pipe.position)
        position = cursor.highest(source) or last
        if last is not None and not full:
            is_full, condition = False, cursor.since(last, said.overlap)
    stretches = _stretches(source, table, pipe.dataset, condition, parallelism if is_full else 0)
    return Plan(is_full, position, as_of, list(stretches))


ALL: sql.Composable = sql.SQL("true")


def _changed(source: "psycopg.Connection[Any]", table: Table, dataset: str, found: Found) -> Iterator[str]:
    """Queries for rows by key: keys without a row are deletions."""
    types = [tables.type_of(source, table.parts[0], column) for column in table.key]
    keys, moment = iter(sorted(found.keys)), _now()
    while some := list(islice(keys, KEYS)):
        yield queries.changed(table, types, some, dataset, moment).as_string(source)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _stretches(
    source: "psycopg.Connection[Any]", table: Table, dataset: str, condition: sql.Composable, parallelism: int
) -> Iterator[str]:
    """Split into queries by stretches of blocks of each partition.

    Args:
        parallelism: 0: few rows are read, by one query of each partition.
    """
    moment = _now()
    sizes = {part: _blocks(source, part) for part in table.parts}
    step = max(LEAST_BLOCKS, min(BLOCKS, -(-sum(sizes.values()) // max(1, parallelism))))
    for part, blocks in sizes.items():
        starts = range(0, max(1, blocks), step) if parallelism else range(1)
        for start in starts:
            within = condition
            if len(starts) > 1:
                end = sql.SQL(" AND t.ctid < {}::tid").format(sql.Literal(f"({start + step},0)"))
                within = sql.SQL("{} AND t.ctid >= {}::tid{}").format(
                    condition,
                    sql.Literal(f"({start},0)"),
                    end if start != starts[-1] else sql.SQL(""),
                )
            yield queries.events(table, part, dataset, moment, within).as_string(source)


def _blocks(source: "psycopg.Connection[Any]", part: str) -> int:
    """Blocks of a table."""
    query = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int"
    ((found,),) = source.execute(query, [part]).fetchall()
    return int(found)
