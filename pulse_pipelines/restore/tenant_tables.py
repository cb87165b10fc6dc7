"""Tables of a tenant's own with commits that Postgres lost, or with metadata that the object store lost.

An engine's metadata is written just before the catalog's pointer moves to it, so the newest that names the
catalog's as an earlier one was current, unless the process died between the two. What a tenant wrote is read
by a key of the tenant's folder, within limits of size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.fs as pafs

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, parsing, paths, table_state
from pulse_pipelines.lake.catalog import OwnTable
from pulse_resources import object_store
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.table_metadata import Document
from pulse_resources.store_keys.vended import Mode

READ = 20
"""Later metadata files of a table that are read, the newest first."""


@dataclass(frozen=True)
class Behind:
    """A table whose folder holds commits that the catalog does not know."""

    table: OwnTable
    newest: str
    """Location of the newest metadata that follows the catalog's."""
    commits: int
    """Version numbers between the two."""


@dataclass(frozen=True)
class LostMetadata:
    """A table whose current metadata, or its list of manifests, is not in its folder."""

    table: OwnTable
    newest: str | None
    """Location of the newest metadata that is there with its list of manifests."""


def find_behind(tenant: Tenant) -> list[Behind]:
    """Tables of the tenant's own that lack commits which their folders hold, by name.

    Metadata that is damaged, too large, or that names other folders is passed over.

    Raises:
        OSError: the object store failed.
    """
    return [behind for table in catalog.tenant_tables(tenant) if (behind := _behind(tenant, table))]


def _behind(tenant: Tenant, table: OwnTable) -> Behind | None:
    current = table_metadata.version(table.at)
    if current is None or not paths.is_location(tenant, table.location):
        return None
    for path, document in _whole_documents(tenant, table, _listed(tenant, table)):
        version = table_metadata.version(path) or 0
        if version <= current:
            break
        if table.at in table_metadata.log(document):
            return Behind(table, path, version - current)
    return None


def find_lost_metadata(tenant: Tenant) -> list[LostMetadata]:
    """Tables of the tenant's own whose metadata the object store has lost, by name.

    Data files and manifests are not compared: their names are what a tenant wrote.

    Raises:
        OSError: the object store failed.
    """
    return [lost for table in catalog.tenant_tables(tenant) if (lost := _lost_metadata(tenant, table))]


def _lost_metadata(tenant: Tenant, table: OwnTable) -> LostMetadata | None:
    if not paths.is_location(tenant, table.location):
        return None
    objects = _listed(tenant, table)
    if table.at in objects:
        document = _document(tenant, table.at)
        if document is None or _lists(document) <= objects:
            return None  # the store has it, though it may be damaged or too large
    if catalog.find(tenant, table.namespace, table.name) != table.at:
        return None  # an engine has committed meanwhile, and may have removed what it replaced
    documents = _whole_documents(tenant, table, objects - {table.at})
    return LostMetadata(table, next((path for path, _ in documents), None))


def _listed(tenant: Tenant, table: OwnTable) -> set[str]:
    """Paths of the objects in the folder of the table's metadata."""
    store = metadata.file_system(tenant, Mode.READ)
    return {entry.path for entry in object_store.listed(f"{table.location}/metadata", store)}


def _whole_documents(tenant: Tenant, table: OwnTable, objects: set[str]) -> Iterator[tuple[str, Document]]:
    """The newest metadata files of a table whose lists of manifests are there, and what they hold."""
    for path in table_metadata.newest_first(objects)[:READ]:
        document = _document(tenant, path)
        if document is not None and document["location"] == table.location and _lists(document) <= objects:
            yield path, document


def _lists(document: Document) -> set[str]:
    """Locations of the current snapshot's list of manifests; none if the table has no snapshot."""
    return {
        snapshot["manifest-list"]
        for snapshot in document.get("snapshots", ())
        if snapshot["snapshot-id"] == document.get("current-snapshot-id")
    }


def _document(tenant: Tenant, path: str) -> Document | None:
    try:
        document = parsing.loads(metadata.read(tenant, path, bypass_cache=True).content)
        paths.check(tenant, document)
        parsing.table(document)
    except (*table_state.UNREADABLE, ValueError, TypeError, KeyError):
        return None
    return document


def unknown_folders(tenant: Tenant) -> Iterator[str]:
    """Folders with data of tables of the tenant's own that the catalog lacks: created after the backup.

    Raises:
        OSError: the object store failed.
    """
    locations = {table.location for table in catalog.tenant_tables(tenant)}
    store = metadata.file_system(tenant, Mode.READ)
    folders = object_store.folders(paths.tenant_folder(tenant), store)
    yield from (
        folder
        for folder in folders
        if paths.is_location(tenant, folder) and folder not in locations and _has_data(folder, store)
    )


def _has_data(folder: str, store: pafs.S3FileSystem) -> bool:
    return next(object_store.listed(f"{folder}/data", store), None) is not None
