"""The commit protocol: swap the metadata pointers of tables and write rows in one Postgres transaction.

Every change of a table goes through it. Slow work is done before the transaction: staging files and metadata
that no pointer refers to yet. The pointers are swapped by compare-and-swap; a writer that loses the race
stages again, on top of the winner's metadata.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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


class SwapLost(Exception):  # noqa: N818 - the staged metadata is outdated: stage again
    """Another writer committed first: the table, or a row that goes with it, has changed since staging.

    Args:
        table: None if it is a row that changed.
    """

    def __init__(self, table: TableName | None = None) -> None:
        self.table = table


W = TypeVar("W", bound=Work)


@dataclass
class Change(ABC, Generic[W]):
    """A change of a tenant's tables, and of rows that belong to it. `commit` calls its methods.

    `stage` runs first, outside any transaction. `lock`, the swaps of the pointers, and `write` are one
    transaction. `was_committed` decides if the answer to COMMIT was lost.
    """

    tenant: Tenant

    @property
    @abstractmethod
    def point(self) -> str:
        """Prefix of the names of the fail points."""

    @property
    def role(self) -> Role:
        """The role of Postgres that commits."""
        return "pulse_pipeline"

    @abstractmethod
    def stage(self, lost: SwapLost | None) -> W | None:
        """Stage the tables' next metadata; None: there is nothing to do.

        Args:
            lost: the swap that another writer won; None at the first call.
        """

    def lock(self, connection: postgres.Connection, work: W) -> None:
        """Take locks, and compare rows, before the swaps. Raises SwapLost: stage again."""

    def write(self, connection: postgres.Connection, work: W) -> None:
        """Write rows after the swaps."""

    @abstractmethod
    def was_committed(self, work: W) -> bool:
        """Whether the tables, or the rows, are those that the staged work commits."""


def commit(change: Change[W]) -> W | None:
    """Commit the next metadata of a tenant's tables, and rows, in one transaction of the tenant's session.

    Returns:
        The committed work; None when there was nothing to do.

    Raises:
        Transient: other writers kept committing first; nothing was changed.
        OSError: the object store failed; nothing was changed.
        psycopg.OperationalError: Postgres failed; nothing was changed.
    """
    lost: SwapLost | None = None
    for _ in range(MAX_TRIES):
        work = change.stage(lost)
        if work is None:
            return None
        fail_point(f"{change.point}.staged")
        try:
            _carry_out(change, work)
        except SwapLost as error:
            lost = error
            continue
        except psycopg.OperationalError:
            if not change.was_committed(work):
                raise
        return work
    where = {"table": ".".join(lost.table)} if lost and lost.table else {}
    raise Transient(
        "other writers keep committing first",
        fix="Nothing was changed: try again",
        tenant=change.tenant.slug,
        **where,
    )


def _carry_out(change: Change[W], work: W) -> None:
    point = change.point
    with postgres.tenant_transaction(change.role, change.tenant.tenant_id) as connection:
        change.lock(connection, work)
        for table in sorted(work.tables, key=lambda item: item.table):  # one order prevents deadlocks
            fail_point(f"{point}.before_swap")
            _enter(connection, table)
            fail_point(f"{point}.after_swap")
        change.write(connection, work)
        fail_point(f"{point}.before_commit")
    fail_point(f"{point}.after_commit")


def _enter(connection: postgres.Connection, following: Next) -> None:
    entered = (
        iceberg.begin(connection, following.table, following.new, following.kind)
        if following.old is None
        else iceberg.swap(connection, following.table, following.old, following.new)
    )
    if not entered:
        raise SwapLost(following.table)


@dataclass(frozen=True)
class DatasetWork(Work):
    staged: Staged


@dataclass
class DatasetChange(Change[DatasetWork]):
    """A change of one dataset's table.

    `commit` raises Terminal, too: the table is gone, or is another dataset's of the same slug.
    """

    dataset: Dataset
    point = "rewrite"

    @abstractmethod
    def stage_on(self, table: Table) -> Staged | None:
        """Stage the next metadata on top of the current table; None: there is nothing to do."""

    def stage(self, lost: SwapLost | None) -> DatasetWork | None:
        staged = self.stage_on(live_table.current(self.tenant, self.dataset))
        if staged is None:
            return None
        return DatasetWork([Next((self.tenant.namespace, self.dataset.slug), staged.old, staged.new)], staged)

    def was_committed(self, work: DatasetWork) -> bool:
        table = live_table.current(self.tenant, self.dataset)
        return table.snapshot_by_id(work.staged.snapshot_id) is not None
