"""Resolution of a query's tables in the tenant's RLS session, each pinned at a snapshot.

Datasets are named by their slugs, rollups `<slug>__<rollup>`, tables of the tenant's own `namespace.table`.
`<slug>__latest` is the latest state of a dataset of entities, in the dataset's table and at its snapshot.
The tenant's engines write the metadata of the latter: it is read with keys of the tenant's folder, and the
query's key opens the folder that the catalog gave the table, whatever the metadata names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines import registry
from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata as files, names, parsing, paths, updates
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.query import snapshots as history
from pulse_pipelines.registry import NamedTable
from pulse_pipelines.sql import equality, pruning
from pulse_pipelines.sql.engine import View
from pulse_resources import iceberg, postgres
from pulse_resources.errors import NotFound, Terminal, UserError
from pulse_resources.iceberg import table_metadata
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Mode


@dataclass(frozen=True)
class Travel:
    """The time travel of a query; by default it reads the present."""

    snapshots: Mapping[str, int] = field(default_factory=dict)
    """Snapshot ids by the tables' names in the query."""
    as_of: datetime | None = None
    """Moment for all other tables."""


@dataclass(frozen=True)
class PinnedTable:
    """A table at a snapshot; the key to its files is in its view only."""

    name: str
    """A dataset's slug, also of its latest state, `<slug>__<rollup>`, or `namespace.table` of one's own."""
    snapshot_id: int | None
    """None: it had no rows yet."""
    view: View = field(repr=False)


def tables(
    tenant: Tenant, named: Sequence[str], optional: Sequence[str], travel: Travel
) -> list[PinnedTable]:
    """Resolve the tables that a query names, all at the same moment.

    Args:
        optional: names without a namespace that may be tables; the others are left out.

    Raises:
        NotFound: the tenant has no such table (another tenant may), the table has no such snapshot, or the
            snapshot that was current then has been removed.
        UserError: a snapshot is given for a table that the query does not name, or the metadata of a table
            of the tenant's own is wrong.
        Terminal: the table of a dataset or rollup is gone or damaged, or no credentials are vended.
        Transient: the object store does not answer.
    """
    ours = [name for name in named if "." not in name]
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        datasets = registry.named_tables(connection, tenant, ours, optional)
        locations = {name: _location(connection, tenant, name) for name in named if "." in name}
    unknown = sorted(travel.snapshots.keys() - {dataset.table for dataset in datasets} - locations.keys())
    if unknown:
        raise UserError(
            f"a snapshot is named for {unknown[0]!r}, which the query does not read",
            fix="Name tables as the query does, and a dataset's latest state by the dataset's slug",
        )
    pinned = [_pin_dataset_table(tenant, dataset, travel) for dataset in datasets]
    return pinned + [_pin_tenant_table(tenant, name, at, travel) for name, at in locations.items()]


def _location(connection: postgres.Connection, tenant: Tenant, name: str) -> str:
    """The location of the current metadata of one of the tenant's own tables."""
    namespace, _, table = name.rpartition(".")
    place = names.encoded_namespace(tenant, tuple(namespace.split(".")))
    row = None
    if place is not None and names.usable(table):
        row = connection.execute(catalog.FIND, [iceberg.CATALOG, place, table, Kind.TABLE]).fetchone()
    if row is None:
        raise NotFound(
            f"there is no table {name[:100]!r}",
            fix="Datasets are named by their slugs alone, tables of your own namespace.table, as the catalog"
            " spells them; views of engines are not read here",
            tenant=tenant.slug,
        )
    return str(row[0])


def _pin_dataset_table(tenant: Tenant, named: NamedTable, travel: Travel) -> PinnedTable:
    name, bucket = named.table, load_settings().object_store.bucket
    folder = tenant.table_location(bucket, name, named.dataset.dataset_id)
    if not named.metadata_location.startswith(f"{folder}/"):
        raise Terminal("the table's metadata is not in its folder", tenant=tenant.slug, table=name)
    with history.store_errors_explained():
        metadata = history.metadata_at((tenant.namespace, name), named.metadata_location)
    pinned = _pinned(name, named.metadata_location, folder, metadata, travel)
    # Other datasets have no rows before 1970: their queries need not read the list of manifests for this.
    early = load_settings().ingest.earliest_timestamp < EPOCH
    bounds = pinned.view.bounds if early else None
    view = replace(
        pinned.view,
        name=named.name,
        latest=named.latest,
        bounds=bounds,
        nan=pinned.view.nan and name != named.dataset.slug,  # events have none, what a rollup computes may be
    )
    return replace(pinned, view=view)


def _pin_tenant_table(tenant: Tenant, name: str, at: str, travel: Travel) -> PinnedTable:
    folder = table_metadata.folder(at)
    if not paths.is_location(tenant, folder):
        raise Terminal("the table's metadata is not in a folder of the tenant's own", tenant=tenant.slug)
    with history.store_errors_explained():
        read = _read(tenant, name, at)
    try:
        document = read.document()
        paths.check(tenant, document)
        if document["location"] != folder:
            raise UserError("it is the metadata of another table")
        metadata = parsing.table(document)
        for field in metadata.spec().fields:
            if not field.name.isascii():  # in manifests it is a name that Avro forbids: DuckDB aborts
                raise UserError(f"DuckDB reads no table with a partition field {field.name[:100]!r}")
    except (UserError, *updates.WRONG) as error:
        raise _damaged(name, error) from None
    pinned = _pinned(name, at, folder, metadata, travel)
    snapshot = None if pinned.snapshot_id is None else metadata.snapshot_by_id(pinned.snapshot_id)
    if snapshot is None:
        return pinned
    view = replace(
        pinned.view,
        manifest_list=snapshot.manifest_list,
        exact_columns=equality.exact_columns(metadata),
        scopes=equality.scopes(metadata),
    )
    return replace(pinned, view=view)


def _read(tenant: Tenant, name: str, at: str) -> files.Metadata:
    try:
        return files.read(tenant, at)
    except Terminal as error:  # its engines write, and drop, the files: no damage to Pulse
        raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> UserError:
    reason = error.message if isinstance(error, UserError | Terminal) else updates.wrong(error).message
    return UserError(
        f"the table {name!r} cannot be read: {reason}",
        fix="Its metadata is what an engine of yours wrote: roll it back, or create the table again",
    )


def _pinned(name: str, at: str, folder: str, metadata: TableMetadata, travel: Travel) -> PinnedTable:
    snapshot_id = _snapshot(metadata, name, travel)
    key = vended.credentials([folder], Mode.READ, to_tenant=True)  # for the process that runs the query
    current = snapshot_id == metadata.current_snapshot_id
    snapshot = None if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
    by_timestamps = pruning.timestamp_fields(metadata)
    view = View(
        name=name,
        metadata_location=at,
        snapshot_id=None if current else snapshot_id,
        empty=snapshot_id is None,
        folder=f"{folder}/",
        access_key=key.access_key,
        secret_key=key.secret_key,
        session_token=key.session_token,
        whole=pruning.misjudges(metadata),
        bounds=snapshot.manifest_list if snapshot and by_timestamps else None,
        timestamp_fields=by_timestamps,
        nan=pruning.may_have_nan(metadata),
    )
    return PinnedTable(name, snapshot_id, view)


def _snapshot(metadata: TableMetadata, name: str, travel: Travel) -> int | None:
    if name in travel.snapshots:
        return history.by_id(metadata, travel.snapshots[name]).snapshot_id
    if travel.as_of is not None:
        snapshot = history.as_of(metadata, travel.as_of)
        return snapshot.snapshot_id if snapshot else None
    return metadata.current_snapshot_id
