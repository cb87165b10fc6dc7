"""Snapshots of a dataset: the history in its current metadata, and lookup by id or moment for time travel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from pulse_pipelines import registry
from pulse_pipelines.domain.moments import EPOCH, utc_text
from pulse_pipelines.domain.requests import SHOWN_SNAPSHOTS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.commit import BATCH_PROPERTY
from pulse_resources import iceberg
from pulse_resources.errors import FileGone, NotFound, PulseError, Terminal, Transient
from pulse_resources.iceberg import readable
from pulse_resources.settings import load_settings

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Snapshot:
    """One commit to a dataset's table."""

    snapshot_id: int
    parent_id: int | None
    committed_at: datetime
    operation: str
    """append, overwrite, replace or delete."""
    added_rows: int
    total_rows: int
    batch_id: str | None
    """The batch that committed it; None: another writer, such as maintenance."""
    schema_id: int | None


def snapshots(tenant: Tenant, slug: str, limit: int = SHOWN_SNAPSHOTS) -> list[Snapshot]:
    """List the dataset's snapshots that have not expired, newest first.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: the dataset's table is gone or damaged.
        Transient: the object store does not answer.
    """

    def newest(metadata: TableMetadata) -> list[Snapshot]:
        return [_described(snapshot) for snapshot in islice(history(metadata), limit)]

    return of_current(newest, tenant, slug)


def newest_snapshot(tenant: Tenant, slug: str, location: str) -> Snapshot | None:
    """The newest snapshot of a dataset whose metadata was at `location` a moment ago; None: it has none.

    Raises:
        as `snapshots`.
    """

    def newest(metadata: TableMetadata) -> Snapshot | None:
        return next((_described(snapshot) for snapshot in history(metadata)), None)

    return of_current(newest, tenant, slug, location)


def _described(snapshot: IcebergSnapshot) -> Snapshot:
    summary = snapshot.summary
    properties = summary.additional_properties if summary else {}
    return Snapshot(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        committed_at=EPOCH + timedelta(milliseconds=snapshot.timestamp_ms),
        operation=summary.operation.value if summary else "",
        added_rows=int(properties.get("added-records") or 0),
        total_rows=int(properties.get("total-records") or 0),
        batch_id=properties.get(BATCH_PROPERTY),
        schema_id=snapshot.schema_id,
    )


def of_current(
    use: Callable[[TableMetadata], _Made], tenant: Tenant, slug: str, location: str | None = None
) -> _Made:
    """Apply `use` to the current metadata of the dataset's table, resolved in the tenant's RLS session.

    Args:
        location: where the metadata was a moment ago, if the caller has resolved it.

    Raises:
        as `snapshots`, and what `use` does.
    """

    def read(metadata_location: str) -> _Made:
        with store_errors_explained():
            metadata = metadata_at((tenant.namespace, slug), metadata_location)
        return use(metadata)

    def resolve() -> str:
        return registry.current_table(tenant, slug).metadata_location

    return readable.as_it_is(read, location or resolve(), resolve, str)


@lru_cache(maxsize=128)
def metadata_at(table: iceberg.TableName, location: str) -> TableMetadata:
    """Read a metadata file, cached because it is immutable. Raises as `iceberg.load_table`."""
    return iceberg.load_table(table, location).metadata


@lru_cache(maxsize=32)
def manifests(manifest_list: str) -> tuple[ManifestFile, ...]:
    """Read the manifests in a snapshot's manifest list, cached because it is immutable.

    Raises:
        OSError: the object store failed; FileNotFoundError: the list is gone.
    """
    return tuple(read_manifest_list(iceberg.file_io().new_input(manifest_list)))


@contextmanager
def store_errors_explained() -> Iterator[None]:
    """Convert errors of reading a table's metadata to errors of Pulse."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileGone(f"a file of the table is gone: {error}") from error
    except TimeoutError:
        raise
    except OSError as error:
        endpoint = load_settings().object_store.endpoint
        raise Transient(f"the object store does not answer: {error}", endpoint=endpoint) from error
    except PulseError:
        raise
    except Exception as error:  # of any kind: damaged bytes are decoded as lengths and types
        raise Terminal(f"a file of the table is damaged: {error}") from error


def history(metadata: TableMetadata) -> Iterator[IcebergSnapshot]:
    """The current snapshot and its ancestors that have not expired, newest first.

    Each occurs once: a table's engines may have written an ancestor of itself.
    """
    available = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    following = metadata.current_snapshot_id
    while following is not None and (snapshot := available.pop(following, None)) is not None:
        yield snapshot
        following = snapshot.parent_snapshot_id


def by_id(metadata: TableMetadata, snapshot_id: int) -> IcebergSnapshot:
    """Find a snapshot in the table's history. Raises NotFound, also for one that was rolled back."""
    for snapshot in history(metadata):
        if snapshot.snapshot_id == snapshot_id:
            return snapshot
    raise NotFound(
        "the dataset has no such snapshot",
        fix="List its snapshots",
        snapshot=snapshot_id,
    )


def as_of(metadata: TableMetadata, moment: datetime) -> IcebergSnapshot | None:
    """Find the snapshot that was current at a moment; None: the table was still empty.

    Raises:
        NotFound: that snapshot has expired.
    """
    snapshots = list(history(metadata))
    for snapshot in snapshots:
        if EPOCH + timedelta(milliseconds=snapshot.timestamp_ms) <= moment:
            return snapshot
    if snapshots and snapshots[-1].parent_snapshot_id is not None:
        since = EPOCH + timedelta(milliseconds=snapshots[-1].timestamp_ms)
        raise NotFound(
            f"the dataset's history is kept since {utc_text(since)} only",
            fix="Ask for a later moment",
            moment=utc_text(moment),
        )
    return None
