"""Resolution of a query's tables: by name in the tenant's RLS session, each pinned at a snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import snapshots as history
from pulse_pipelines.registry import NamedTable
from pulse_pipelines.sql.engine import View
from pulse_resources import vended
from pulse_resources.errors import Terminal, UserError
from pulse_resources.settings import load_settings
from pulse_resources.vended import Mode


@dataclass(frozen=True)
class Travel:
    """The time travel of a query; by default it reads the present."""

    snapshots: Mapping[str, int] = field(default_factory=dict)
    """Snapshot ids by table."""
    as_of: datetime | None = None
    """Moment for all other tables."""


@dataclass(frozen=True)
class PinnedTable:
    """A table at a snapshot; the key to its files is in its view only."""

    name: str
    """A dataset's slug, or `<slug>__<rollup>`."""
    snapshot_id: int | None
    """None: it had no rows yet."""
    view: View = field(repr=False)


def tables(
    tenant: Tenant, named: Sequence[str], optional: Sequence[str], travel: Travel
) -> list[PinnedTable]:
    """Resolve the tables that a query names, all at the same moment.

    Args:
        optional: names that may be tables; the others are left out.

    Raises:
        NotFound: the tenant has no such table (another tenant may), the table has no such snapshot, or
            the snapshot that was current then has been removed.
        UserError: a snapshot is given for a table that the query does not name.
        Terminal: a table is gone or damaged, or no credentials are vended.
        Transient: the object store does not answer.
    """
    found = registry.named_tables(tenant, named, optional)
    unknown = sorted(travel.snapshots.keys() - {each.name for each in found})
    if unknown:
        raise UserError(f"the query does not read {unknown[0]!r}, of which a snapshot is named")
    return [_pinned(tenant, each, travel) for each in found]


def _pinned(tenant: Tenant, seen: NamedTable, travel: Travel) -> PinnedTable:
    name, bucket = seen.name, load_settings().object_store.bucket
    folder = tenant.table_location(bucket, name, seen.dataset.dataset_id)
    if not seen.metadata_location.startswith(f"{folder}/"):
        raise Terminal("the table's metadata is not in its folder", tenant=tenant.slug, table=name)
    with history.store_errors_explained():
        metadata = history.metadata_at((tenant.namespace, name), seen.metadata_location)
    snapshot_id = _snapshot(metadata, name, travel)
    key = vended.credentials([folder], Mode.READ)
    current = snapshot_id == metadata.current_snapshot_id
    view = View(
        name=name,
        metadata_location=seen.metadata_location,
        snapshot_id=None if current else snapshot_id,
        empty=snapshot_id is None,
        folder=f"{folder}/",
        access_key=key.access_key,
        secret_key=key.secret_key,
        session_token=key.session_token,
    )
    return PinnedTable(name, snapshot_id, view)


def _snapshot(metadata: TableMetadata, name: str, travel: Travel) -> int | None:
    if name in travel.snapshots:
        return history.by_id(metadata, travel.snapshots[name]).snapshot_id
    if travel.as_of is not None:
        found = history.as_of(metadata, travel.as_of)
        return found.snapshot_id if found else None
    return metadata.current_snapshot_id
