"""Tables of a tenant's own as Pulse reads and changes them, with a key for the table's folder only."""

from dataclasses import dataclass

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import ResolveError
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import UnknownTransform

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, parsing, paths, updates
from pulse_pipelines.lake.catalog import ROLE, OwnTable
from pulse_pipelines.tables.orphan_files import Access
from pulse_resources import iceberg
from pulse_resources.errors import PulseError, Terminal
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.foreign_io import foreign_file_io
from pulse_resources.iceberg.foreign_tables import ForeignTable
from pulse_resources.iceberg.live_manifests import names_removed
from pulse_resources.iceberg.table_metadata import Document
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Mode

UNREADABLE = (
    *updates.WRONG,
    PulseError,
    FileNotFoundError,
    OverflowError,
    EOFError,
    AssertionError,
    ResolveError,
)
"""Exceptions for which a table is left as it is: its metadata is damaged, or made to look so."""


EXHAUSTED = (MemoryError, SystemError)
"""Exceptions that mean that the memory of a process is exhausted: orjson tells by the second one."""


class NotRewritten(Terminal):
    """A table whose data files Pulse does not write again, and why."""


@dataclass(frozen=True)
class TableState:
    """A table at one moment."""

    name: iceberg.TableName
    document: Document
    table: Table
    store: Access

    @property
    def metadata(self) -> TableMetadata:
        return self.table.metadata

    @property
    def foreign(self) -> ForeignTable:
        """The table as a base for staging its next metadata."""
        return ForeignTable(self.name, self.table.metadata_location, self.document, self.store.store)


def access(entry: OwnTable) -> Access:
    """A key that opens the table's folder, and nothing else."""
    key = vended.credentials([entry.location], Mode.WRITE)
    return Access(metadata.client(key), key, ROLE, entry.location)


def read_state(tenant: Tenant, entry: OwnTable) -> TableState:
    """The table as it is now, if it still is in the folder that the catalog gave it.

    Raises:
        Terminal: it is elsewhere; its metadata is gone or names another folder.
        NoSuchTable: it was dropped.
        ValueError and other errors of `UNREADABLE`: its metadata is damaged.
    """
    at = catalog.location(tenant, entry.namespace, entry.name)
    by = access(entry)
    document = table_metadata.read(at, by.store)
    if table_metadata.folder(at) != entry.location or document["location"] != entry.location:
        raise Terminal("the table is in another folder")
    paths.check(tenant, document)
    file_io = foreign_file_io(by.store)
    table = Table(entry.row, parsing.table(document), at, file_io, NoopCatalog(iceberg.CATALOG))
    return TableState(entry.row, document, table, by)


def property_of(document: Document, name: str) -> str | None:
    """A property of a table, in lower case; None: it has none."""
    value = (document.get("properties") or {}).get(name)
    return None if value is None else str(value).lower()


def check_rewritable(metadata: TableMetadata) -> None:
    """Check that Pulse can write data files of this table.

    Raises:
        NotRewritten: the table's format, partitions or order are such that a file could differ.
    """
    if metadata.format_version != 2:
        raise NotRewritten(f"it is of format version {metadata.format_version}")
    if any("encryption" in name for name in metadata.properties):
        raise NotRewritten("it is encrypted")
    if any(isinstance(field.transform, UnknownTransform) for field in metadata.spec().fields):
        raise NotRewritten("it is partitioned by a transform that Pulse does not know")


def live_entries(state: TableState, *, with_deletes: bool = False) -> dict[str, ManifestEntry]:
    """The data files of the table's current snapshot, by their paths.

    Args:
        with_deletes: it may have delete files, which may delete any of the rows.

    Raises:
        NotRewritten: it has delete files, or a manifest that is encrypted, or one file twice.
        OSError: the object store failed.
    """
    snapshot, entries = state.metadata.current_snapshot(), dict[str, ManifestEntry]()
    for manifest in snapshot.manifests(state.table.io) if snapshot else ():
        if manifest.content is not ManifestContent.DATA:
            if with_deletes or _removed(manifest, state):
                continue
            raise NotRewritten("it has delete files")
        if manifest.key_metadata:
            raise NotRewritten("it is encrypted")
        for entry in manifest.fetch_manifest_entry(state.table.io, discard_deleted=True):
            if entries.setdefault(entry.data_file.file_path, entry) is not entry:
                raise NotRewritten("its snapshot has a file twice")
    return entries


def _removed(manifest: ManifestFile, state: TableState) -> bool:
    """Whether all files of a manifest were removed: a compaction of delete files leaves such a manifest."""
    return names_removed(manifest) and not manifest.fetch_manifest_entry(state.table.io, discard_deleted=True)


def live_files(state: TableState) -> dict[str, DataFile]:
    """As `live_entries`, without the sequence numbers."""
    return {path: entry.data_file for path, entry in live_entries(state).items()}
