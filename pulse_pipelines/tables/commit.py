"""The commit protocol: swap the metadata pointers of tables and write rows in one Postgres transaction.

Every change of a table goes through it. Slow work is done before the transaction: staging files and metadata
that no pointer refers to yet. The pointers are swapped by compare-and-swap; a writer that loses the race
stages again, on top of the winner's metadata.
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
from pulse_resources.iceberg import Staged, TableName
from pulse_resources.process.faults import fail_point
from pulse_resources.settings.service_settings import Role

MAX_TRIES = 20
BATCH_PROPERTY = "pulse.batch-id"
"""Snapshot property: the batch that landed its files."""


@dataclass(frozen=True)
class Next:
    """The staged next metadata of a table: written, but no pointer refers to it."""

    table: TableName
    old: str | None
    """Location of the metadata that it was staged on; None: the table is new."""
    new: str
    kind: str = "TABLE"
    """What a new one is to the catalog: TABLE or VIEW."""


@dataclass(frozen=True)
class Work:
    """Staged tables to commit. A subclass adds what its `write` needs."""

    tables: Sequence[Next]


class SwapLost(Exception):  # noqa: N818 - what was staged is outdated: stage again
    """Another writer committed first: the table, or a row that goes with it, has changed since staging.

    Args:
        table: None if it is a row that changed.
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
        stage: stages the tables' next metadata; called again with the lost swap. None: nothing to do.
        committed: whether the staged work was committed; called when the answer to COMMIT was lost.
        before: takes locks, and compares rows, before the swaps; may raise `SwapLost`.
        write: writes rows after the swaps.
        role: of Postgres.
        point: prefix of the names of the fail points.

    Returns:
        The committed work; None when there was nothing to do.

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
                for table in sorted(work.tables, key=lambda item: item.table):  # one order prevents deadlocks
                    fail_point(f"{point}.before_swap")
                    _enter(connection, table)
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
        stage: stages the next metadata on top of the table given, as in `commit`.

    Returns:
        The committed metadata; None when there was nothing to do.

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
