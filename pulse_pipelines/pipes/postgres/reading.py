"""Reading: the queries of a run, by the mode of its pipe, and the position in the source after it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.pipes import Definition, Mode
from pulse_pipelines.pipes.postgres import publications, queries, sessions, shapes, slots, tables
from pulse_pipelines.pipes.postgres.cursors import Cursor, Reached
from pulse_pipelines.pipes.postgres.pgoutput import LogChanges
from pulse_pipelines.pipes.postgres.places import Place, SlotRead
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
    """The queries of a run, and the position after it."""

    is_full: bool
    position: str | None
    as_of: datetime
    """The moment of the source up to which the position stands for everything."""
    queries: Sequence[str]


def read_changes(address: str, pipe: Pipe) -> SlotRead | None:
    """Read the changes in the source's log, before the snapshot for the rows; None in other modes.

    A change that is not in the snapshot is read again by the next run (`Seen.within`), and none is missed.

    Raises:
        Conflict: the pipe's position belongs to another log or slot.
        UserError: the table's changes cannot be captured.
        Transient: a transaction that writes the table does not end.
    """
    definition = pipe.definition
    if definition.of_postgres.mode is not Mode.CHANGES:
        return None
    table = captured(address, pipe)
    place = None if pipe.position is None else Place.parse(pipe.position)
    if place is not None:
        return slots.read_changes(address, pipe.tenant, definition, table, place)
    now = datetime.now(UTC)
    place = slots.begin(address, pipe.tenant, definition, table)
    return SlotRead(LogChanges(whole=True), place, now, place.lsn)


def captured(address: str, pipe: Pipe) -> Table:
    """Inspect a table whose changes are captured.

    Raises:
        NotFound, UserError: it is gone, or its changes cannot be captured.
    """
    with sessions.connect(address) as source:
        slots.spare(source, pipe.tenant, pipe.definition)
        sessions.freeze(source)
        return _captured(source, pipe.definition)


def _captured(source: "psycopg.Connection[Any]", definition: Definition) -> Table:
    table = tables.inspect(source, definition)
    if table.partitioned or definition.of_postgres.key:
        raise UserError(
            "changes are captured only for tables that are not partitioned, by their primary key",
            fix="Use mode: incremental or full",
            pipe=definition.pipe,
        )
    return table


def checked(source: "psycopg.Connection[Any]", definition: Definition) -> Table:
    """Inspect the table of a new pipe, and check that its runs can read it.

    Raises:
        NotFound, UserError: they could not, and why.
    """
    if definition.of_postgres.mode is Mode.CHANGES:
        table = _captured(source, definition)
        publications.check(source, definition, table)
    else:
        table = tables.inspect(source, definition)
    probes = [queries.events(table, part, definition.dataset, _now(), ALL) for part in table.parts[:1]]
    if definition.of_postgres.mode is Mode.CHANGES:
        # Rows by key: its type may have operators in a schema that the search path lacks.
        types = [tables.type_of(source, table.parts[0], column) for column in table.key]
        probes.append(queries.changed(table, types, [(None,) * len(types)], definition.dataset, _now()))
    try:
        if definition.of_postgres.cursor is not None and table.parts:
            cursor = Cursor.of(source, table, definition.of_postgres.cursor)
            since = cursor.since(None, definition.of_postgres.overlap)
            probes += [queries.events(table, table.parts[0], definition.dataset, _now(), since)]
            with source.transaction():
                source.execute(sql.SQL("EXPLAIN {}").format(cursor.query))
    except psycopg.errors.UndefinedFunction:
        raise UserError(
            f"the cursor {cursor.column} is of the type {cursor.kind}, which the source cannot order",
            fix="Name a column of numbers, texts, dates or timestamps that grows with each change of a row",
            pipe=definition.pipe,
        ) from None
    for query in probes:
        try:
            with source.transaction():
                source.execute(sql.SQL("EXPLAIN {}").format(query))
        except psycopg.ProgrammingError as error:
            raise UserError(
                f"the source refuses to read it: {error.diag.message_primary}", pipe=definition.pipe
            ) from None
    return table


def plan(
    source: "psycopg.Connection[Any]",
    pipe: Pipe,
    slot_read: SlotRead | None,
    moment: datetime,
    parallelism: int,
    *,
    full: bool,
) -> Plan:
    """Plan what a run reads in a snapshot.

    Args:
        slot_read: changes that were found before the snapshot; None in other modes.
        moment: one before the snapshot.
        parallelism: how many tasks share the queries.
        full: read all rows, in any mode.

    Raises:
        NotFound, UserError: the table no longer exists, or cannot be replicated.
    """
    source_table = pipe.definition.of_postgres
    table = tables.inspect(source, pipe.definition)
    is_full, position, as_of, condition = True, pipe.position, moment, ALL
    fresh: Collection[str] = ()
    if slot_read is not None:
        ((snapshot,),) = source.execute("SELECT txid_current_snapshot()::text").fetchall()
        slot_read = slot_read.within(snapshot)
        position, as_of, changes = str(slot_read.place), slot_read.as_of, slot_read.changes
        if not changes.whole and not full:
            return Plan(False, position, as_of, list(_changed(source, table, pipe.dataset, changes)))
    elif source_table.cursor is not None:
        cursor = Cursor.of(source, table, source_table.cursor)
        before = Reached.of(pipe)
        last = cursor.usable(source, before.cursor)
        shape = shapes.shape(source, table.name)
        if last is not None and not full and before.shape in ("", shape):
            fresh, is_full = shapes.changed_partitions(source, table, before.moment)
        if not is_full:
            condition = cursor.since(last, source_table.overlap)
        highest = cursor.highest(source)
        at = last if highest is None else highest
        position = None if at is None else str(Reached(at, shape, shapes.moment(source, table)))
    stretches = _stretches(source, table, pipe.dataset, condition, parallelism if is_full else 0, fresh)
    return Plan(is_full, position, as_of, list(stretches))


ALL: sql.Composable = sql.SQL("true")


def _changed(
    source: "psycopg.Connection[Any]", table: Table, dataset: str, changes: LogChanges
) -> Iterator[str]:
    """Queries for rows by key: keys without a row are deletions."""
    types = [tables.type_of(source, table.parts[0], column) for column in table.key]
    keys, moment = iter(sorted(changes.keys)), _now()
    while some := list(islice(keys, KEYS)):
        yield queries.changed(table, types, some, dataset, moment).as_string(source)


def _now() -> str:
    return utc_text(datetime.now(UTC), timespec="microseconds")


def _stretches(
    source: "psycopg.Connection[Any]",
    table: Table,
    dataset: str,
    condition: sql.Composable,
    parallelism: int,
    fresh: Collection[str],
) -> Iterator[str]:
    """Split into queries by stretches of blocks of each partition.

    Args:
        parallelism: 0: few rows are read, by one query of each partition.
        fresh: partitions of which all rows are read.
    """
    moment = _now()
    sizes = {part: _blocks(source, part) for part in table.parts}
    step = max(LEAST_BLOCKS, min(BLOCKS, -(-sum(sizes.values()) // max(1, parallelism))))
    for part, blocks in sizes.items():
        starts = range(0, max(1, blocks), step) if parallelism else range(1)
        for start in starts:
            within = ALL if part in fresh else condition
            if len(starts) > 1:
                end = sql.SQL(" AND t.ctid < {}::tid").format(sql.Literal(f"({start + step},0)"))
                within = sql.SQL("{} AND t.ctid >= {}::tid{}").format(
                    within,
                    sql.Literal(f"({start},0)"),
                    end if start != starts[-1] else sql.SQL(""),
                )
            yield queries.events(table, part, dataset, moment, within).as_string(source)


def _blocks(source: "psycopg.Connection[Any]", part: str) -> int:
    """Blocks of a table."""
    query = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int"
    ((count,),) = source.execute(query, [part]).fetchall()
    return int(count)
