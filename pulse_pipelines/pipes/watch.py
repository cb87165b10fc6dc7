"""Watch: between the runs of pipes, the log that sources keep for them, and syncs of dead runs.

A slot makes its source keep its log from the last change that has settled, and of a busy database that is
much, even if the pipe's own table is quiet. So the position moves on while the table does not change: without
a run, a sync or a row.
"""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from pulse_pipelines.domain.pipes import Mode
from pulse_pipelines.pipes import addresses, progress
from pulse_pipelines.pipes.postgres import reading, sessions, slots
from pulse_pipelines.pipes.postgres.places import Place
from pulse_pipelines.pipes.registry import ABANDON_DEAD, Pipe, find, unsettled
from pulse_resources import postgres
from pulse_resources.errors import NotFound, Transient, UserError
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process.faults import fail_point

AT_A_TIME = 8
"""Sources that are waited for: one that does not answer delays the others by little."""
ANSWER_S = 10.0
"""Seconds in which a source has to answer all questions."""
ALL_S = 40.0
"""Seconds for all of them: Dagster waits for a sensor for 60 seconds."""

_Item = TypeVar("_Item")

# The position is that of the last sync that has settled; nothing is between the two.
MOVE_ON = """
UPDATE entity_syncs SET position = %(new)s, as_of = %(as_of)s
WHERE tenant_id = %(tenant)s AND pipe = %(pipe)s AND position = %(old)s AND settled_at IS NOT NULL
    AND sync_id = (SELECT max(sync_id) FROM entity_syncs
        WHERE tenant_id = %(tenant)s AND pipe = %(pipe)s AND settled_at IS NOT NULL)
"""
OPEN_SYNCS = "SELECT DISTINCT tenant_id, pipe FROM entity_syncs WHERE pipe IS NOT NULL AND state = 'open'"
RECORD_SLOT = "UPDATE pipes SET wal_bytes = %s, wal_status = %s WHERE pipe = %s"


def watch(pipes: Iterable[Pipe]) -> Iterator[tuple[Pipe, str | None]]:
    """Watch pipes without an active run, for up to `ALL_S` seconds; yields each with its error, or None.

    Pipes that capture no changes and have no open sync take one query for all. Tenants take turns; after a
    source did not answer in time, its other pipes are skipped.
    """
    until, silent = time.monotonic() + ALL_S, set[tuple[UUID, str | None]]()

    def watch_in_time(pipe: Pipe) -> None:
        source = pipe.tenant.tenant_id, pipe.definition.other_end.source
        if source in silent or time.monotonic() > until:
            return
        try:
            with sessions.within(ANSWER_S):
                watch_one(pipe)
        except Transient:
            silent.add(source)
            raise

    with postgres.transaction("pulse_pipeline") as connection:
        open_syncs = {(tenant_id, name) for tenant_id, name in connection.execute(OPEN_SYNCS)}
    watched = list[Pipe]()
    for pipe in pipes:
        captured = pipe.definition.other_end.mode is Mode.CHANGES
        if captured or (pipe.tenant.tenant_id, pipe.name) in open_syncs:
            watched.append(pipe)
        else:
            yield pipe, None
    for pipe, error in by_turns(watched, lambda pipe: pipe.tenant.tenant_id, watch_in_time):
        yield pipe, None if error is None else str(error)


def by_turns(
    items: Iterable[_Item], tenant_of: Callable[[_Item], UUID], work: Callable[[_Item], None]
) -> Iterator[tuple[_Item, BaseException | None]]:
    """Work on items in `AT_A_TIME` threads, those of a tenant in any order; yields each, with its error.

    The next item is of the tenant with the fewest under way, and of these of the one whose items took the
    least time: servers that do not answer delay other tenants by one wait at most.
    """
    lock, pending, running = threading.Lock(), defaultdict[UUID, list[_Item]](list), Counter[UUID]()
    took = defaultdict[UUID, float](float)
    in_any_order = list(items)
    random.shuffle(in_any_order)
    for item in in_any_order:
        pending[tenant_of(item)].append(item)

    def work_on_next() -> tuple[_Item, BaseException | None]:
        with lock:
            tenant = min(pending, key=lambda tenant: (running[tenant], took[tenant]))
            item = pending[tenant].pop()
            if not pending[tenant]:
                del pending[tenant]
            running[tenant] += 1
        began, error = time.monotonic(), None
        try:
            work(item)
        except Exception as failed:
            error = failed
        with lock:
            running[tenant] -= 1
            took[tenant] += time.monotonic() - began
        return item, error

    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for done in as_completed([threads.submit(work_on_next) for _ in in_any_order]):
            yield done.result()


def watch_one(pipe: Pipe) -> None:
    """Watch a pipe, unless a run is active.

    Raises:
        Conflict: its slot cannot continue.
        NotFound, UserError: its source or table is gone, or cannot be replicated.
        Transient: the source does not answer.
    """
    if pipe.definition.delivers:
        return
    tenant_id = pipe.tenant.tenant_id
    with locks.session(Lock.PIPE, pipe.dataset_id) as alone:
        if alone is None:
            return
        try:
            pipe = find(pipe.tenant, pipe.name)  # no run changes it now
        except NotFound:
            return
        with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
            connection.execute(ABANDON_DEAD, [pipe.name])
            waits = unsettled(connection, pipe)
        if pipe.definition.other_end.mode is not Mode.CHANGES or pipe.position is None or waits:
            return
        place = Place.parse(pipe.position)
        if place is None:  # the next run reads everything
            return
        try:
            _watch_source(pipe, place)
        except UserError as error:  # a source that does not answer now does not fail the pipe
            with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
                progress.failed(connection, pipe.name, error, between_runs=True)
            raise


def _watch_source(pipe: Pipe, place: Place) -> None:
    address, definition = addresses.url(pipe.tenant, pipe.definition.of_postgres.source), pipe.definition
    moment = datetime.now(UTC)
    table = reading.captured(address, pipe)
    slot, later = slots.quiet_until(address, pipe.tenant, definition, table, place)
    with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
        connection.execute(RECORD_SLOT, [slot.wal_bytes, slot.wal_status, pipe.name])
        moved = (
            later is not None
            and connection.execute(
                MOVE_ON,
                {
                    "tenant": pipe.tenant.tenant_id,
                    "pipe": pipe.name,
                    "old": pipe.position,
                    "new": str(later),
                    "as_of": moment,
                },
            ).rowcount
        )
    fail_point("pipe.moved_on")
    if later is not None and moved:
        slots.settled(address, pipe.tenant, definition, later)
