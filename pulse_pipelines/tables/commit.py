"""Commit: tables go on to their next metadata together with what Postgres has to know of it, or not at all.

Every change of a table that Pulse makes is one Postgres transaction which swaps metadata pointers
(compare-and-swap) and writes rows. What takes long is done before it: staging files and metadata that nothing
points at yet. Whoever loses the race stages on top of what the winner left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import live_table
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Transient
from pulse_resources.faults import fail_point
from pulse_resources.iceberg import Staged, TableName
from pulse_resources.service_settings import Role

MAX_TRIES = 20
BATCH_PROPERTY = "pulse.batch-id"
"""Of a snapshot: the batch that landed its files."""


@dataclass(frozen=True)
class Next:
    """A table as it is to become: its metadata is written, and nothing points at it."""

    table: TableName
    old: str | None
    """The metadata that it follows; None: the table is a new one."""
    new: str
    kind: str = "TABLE"
    """What a new one is to the catalog: TABLE or VIEW."""


@dataclass(frozen=True)
class Work:
    """What is staged. A subclass adds what its writer needs to know of it."""

    tables: Sequence[Next]


class SwapLost(Exception):  # noqa: N818 - what was staged is outdated: stage again
    """Another writer came first: the table, or a row that goes with it, is not what it was staged on.

    Args:
        table: None where it is a row.
    """

    def __init__(self, table: TableName | None = None) -> None:
        self.table = table


W = TypeVar("W", bound=Work)


def _nothing(connection: postgres.Connection, work: Work) -> None:
    pass


def commit(
    tenant: Tenant,
    stage: Callable[[SwapLost | None], W | None],
    committed: Callable[[W], bool],
    *,
    before: Callable[[postgres.Connection, W], None] = _nothing,
    write: Callable[[postgres.Connection, W], None] = _nothing,
    role: Role = "pulse_pipeline",
    point: str,
) -> W | None:
    """Commit the next metadata of a tenant's tables, and rows, in one transaction of the tenant's session.

    Args:
        stage: gives what the tables are to become; called again with the race that was lost. None: there is
            nothing to do any more.
        committed: whether what was staged was committed; asked when the answer to COMMIT was lost.
        before: takes locks, and compares rows, before the swaps; may raise `SwapLost`.
        write: writes rows after the swaps.
        role: of Postgres.
        point: begins the names of the fail points.

    Returns:
        What was committed; None when there was nothing to do.

    Raises:
        Transient: other writers kept committing first; nothing was changed.
        OSError: the object store failed; nothing was changed.
        psycopg.OperationalError: Postgres failed; nothing was changed.
    """
    lost: SwapLost | None = None
    for _ in range(MAX_TRIES):
        work = stage(lost)
        if work is None:
            return None
        fail_point(f"{point}.staged")
        try:
            with postgres.tenant_transaction(role, tenant.tenant_id) as connection:
                before(connection, work)
                for each in sorted(work.tables, key=lambda item: item.table):  # one order, so no two deadlock
                    fail_point(f"{point}.before_swap")
                    _enter(connection, each)
                    fail_point(f"{point}.after_swap")
                write(connection, work)
                fail_point(f"{point}.before_commit")
            fail_point(f"{point}.after_commit")
            return work
        except SwapLost as found:
            lost = found
        except psycopg.OperationalError:
            if committed(work):
                return work
            raise
    where = {"table": ".".join(lost.table)} if lost and lost.table else {}
    raise Transient(
        "other writers keep committing first",
        fix="Nothing was changed: try again",
        tenant=tenant.slug,
        **where,
    )


def _enter(connection: postgres.Connection, following: Next) -> None:
    entered = (
        iceberg.begin(connection, following.table, following.new, following.kind)
        if following.old is None
        else iceberg.swap(connection, following.table, following.old, following.new)
    )
    if not entered:
        raise SwapLost(following.table)


@dataclass(frozen=True)
class _Change(Work):
    staged: Staged


def commit_dataset(
    tenant: Tenant,
    dataset: Dataset,
    stage: Callable[[Table], Staged | None],
    *,
    before: Callable[[postgres.Connection], None] = lambda connection: None,
    write: Callable[[postgres.Connection, Staged], None] = lambda connection, staged: None,
) -> Staged | None:
    """Commit a change of one dataset's table.

    Args:
        stage: writes the next metadata on top of the table given, as in `commit`.

    Returns:
        What was committed; None when there was nothing to do.

    Raises:
        Terminal: the table is gone, or another dataset's of the same slug.
        Transient, OSError, psycopg.OperationalError: as `commit`.
    """

    def again(lost: SwapLost | None) -> _Change | None:
        staged = stage(live_table.current(tenant, dataset))
        if staged is None:
            return None
        return _Change([Next((tenant.namespace, dataset.slug), staged.old, staged.new)], staged)

    change = commit(
        tenant,
        again,
        lambda work: live_table.current(tenant, dataset).snapshot_by_id(work.staged.snapshot_id) is not None,
        before=lambda connection, work: before(connection),
        write=lambda connection, work: write(connection, work.staged),
        point="rewrite",
    )
    return None if change is None else change.staged
