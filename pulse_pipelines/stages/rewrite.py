"""Rewrite: replace files of a dataset's table by others, beside ingestion, which only ever adds files.

Backfill, erasure and upkeep rewrite. One of them at a time works on a table: each holds its lease, a session
advisory lock that ends with the process. The lease is for sparing work; what keeps a commit right is the
compare-and-swap, and looking again at what is in the table whenever another writer came first.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import TupleRow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.stages import land
from pulse_resources import iceberg, postgres, readable
from pulse_resources.errors import Terminal, Transient
from pulse_resources.faults import fail_point
from pulse_resources.iceberg import Staged
from pulse_resources.settings import load_settings

MAX_TRIES = 20
_Made = TypeVar("_Made")

KEY = "hashtextextended('rewrite/' || %s, 0)"
MOVE_KEY = "hashtextextended('move/' || %s, 0)"


@contextmanager
def lease(dataset_id: UUID, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only one that rewrites a dataset's table while the block runs.

    Raises:
        Transient: another rewrite did not end within `wait_seconds`.
    """
    with _session(f"pulse-rewrite-{dataset_id}") as session:
        held = session.execute(f"SELECT pg_try_advisory_lock({KEY})", [str(dataset_id)]).fetchone() == (True,)
        if not held and wait_seconds > 0:
            session.execute("SELECT set_config('lock_timeout', %s, false)", [f"{wait_seconds * 1000:.0f}ms"])
            with contextlib.suppress(psycopg.errors.LockNotAvailable):
                session.execute(f"SELECT pg_advisory_lock({KEY})", [str(dataset_id)])
                held = True
        if not held:
            raise Transient(
                "another rewrite of this table is under way", fix="Try again later", dataset=dataset_id
            )
        yield


def leased(dataset_id: UUID) -> bool:
    """Whether somebody rewrites the dataset's table just now."""
    with postgres.transaction("pulse_pipeline") as connection:
        free = connection.execute(f"SELECT pg_try_advisory_xact_lock({KEY})", [str(dataset_id)]).fetchone()
        return free != (True,)


@contextmanager
def moving(dataset_id: UUID) -> Iterator[None]:
    """Write files for a table without its lease, beside others that do: no orphan is looked for meanwhile."""
    with _session(f"pulse-move-{dataset_id}") as session:
        session.execute(f"SELECT pg_advisory_lock_shared({MOVE_KEY})", [str(dataset_id)])
        yield


@contextmanager
def nobody_moving(dataset_id: UUID) -> Iterator[None]:
    """While the block runs nobody is `moving`; who begins to waits for its end.

    Raises:
        Transient: somebody is.
    """
    with _session(f"pulse-sweep-{dataset_id}") as session:
        held = session.execute(f"SELECT pg_try_advisory_lock({MOVE_KEY})", [str(dataset_id)])
        if held.fetchone() != (True,):
            raise Transient(
                "the dataset is just moving to another schema", fix="Try again later", dataset=dataset_id
            )
        yield


def _session(name: str) -> "psycopg.Connection[TupleRow]":
    """A connection of its own: a lock that it takes ends with the process."""
    url = load_settings().postgres.url("pulse_pipeline")
    return psycopg.connect(url, autocommit=True, application_name=name)


def current(tenant: Tenant, dataset: Dataset) -> Table:
    """The dataset's table as it is now.

    Raises:
        Terminal: it is gone, or another dataset's of the same slug.
    """
    return of_current(lambda table: table, tenant, dataset)


def of_current(use: Callable[[Table], _Made], tenant: Tenant, dataset: Dataset) -> _Made:
    """What `use` makes of the dataset's table as it is now; for who reads without its lease.

    Raises:
        Terminal: the table is gone, or another dataset's of the same slug.
    """
    name = (tenant.namespace, dataset.slug)
    look = partial(land.current_location, tenant.tenant_id, name)

    def read(location: str) -> _Made:
        with readable.damage_explained(location):
            table = iceberg.load_table(name, location)
        if table.properties.get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
            raise Terminal("the table is not this dataset's", tenant=tenant.slug, dataset=dataset.slug)
        return use(table)

    return readable.as_it_is(read, look(), look, str)


def live_files(table: Table) -> dict[str, DataFile]:
    """The data files of the current snapshot, by path."""
    snapshot = table.current_snapshot()
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def commit(
    tenant: Tenant,
    dataset: Dataset,
    stage: Callable[[Table], Staged | None],
    write: Callable[[postgres.Connection, Staged], None],
    first: Callable[[postgres.Connection], None] = lambda connection: None,
) -> Staged | None:
    """Commit a change of a table, together with what Postgres has to know of it, or neither.

    Args:
        stage: writes the next metadata on top of the table given; called again whenever another writer came
            first. None: there is nothing to do any more.
        write: writes rows in the transaction, the tenant's session, that swaps the pointer.
        first: takes locks in that transaction which others take before they touch the pointer.

    Returns:
        What was committed; None when `stage` found nothing to do.

    Raises:
        Terminal: the table is gone, or another dataset's of the same slug.
        Transient: other writers kept committing first; nothing was changed.
        OSError: the object store failed; nothing was changed.
        psycopg.OperationalError: Postgres failed; nothing was changed.
    """
    for _ in range(MAX_TRIES):
        table = current(tenant, dataset)
        staged = stage(table)
        if staged is None:
            return None
        fail_point("rewrite.staged")
        try:
            if _swap(tenant, table, staged, write, first):
                fail_point("rewrite.after_commit")
                return staged
        except psycopg.OperationalError:
            if current(tenant, dataset).snapshot_by_id(staged.snapshot_id) is not None:
                return staged  # only the answer was lost
            raise
    raise Transient("other writers keep committing first", tenant=tenant.slug, dataset=dataset.slug)


def _swap(
    tenant: Tenant,
    table: Table,
    staged: Staged,
    write: Callable[[postgres.Connection, Staged], None],
    first: Callable[[postgres.Connection], None],
) -> bool:
    namespace, name = table.name()
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        first(connection)
        if not iceberg.swap(connection, (namespace, name), staged.old, staged.new):
            return False
        write(connection, staged)
        fail_point("rewrite.before_commit")
    return True
