"""Iceberg: catalog rows in Postgres, and staging of a table's next metadata.

Pulse never commits through a catalog client: a commit is a compare-and-swap of `metadata_location` in the
settle transaction, so staged metadata becomes current there or never.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import orjson
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadataUtil, new_table_metadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    TableRequirement,
    TableUpdate,
)
from typing_extensions import override

from pulse_resources import object_store, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.file_io import file_io_of
from pulse_resources.iceberg.live_manifests import LiveOnly, names_removed
from pulse_resources.iceberg.manifest_list import Append
from pulse_resources.iceberg.overwrite import Overwrite
from pulse_resources.settings.service_settings import CATALOG as CATALOG

DATASET_PROPERTY = "pulse.dataset-id"
"""Table property that distinguishes a table from an earlier one of the same name."""
TableName = tuple[str, str]
"""(namespace, table)."""

CURRENT = """
SELECT metadata_location FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s
"""
BEGIN = """
INSERT INTO iceberg_catalog.iceberg_tables
    (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
SWAP = """
UPDATE iceberg_catalog.iceberg_tables
SET metadata_location = %(new)s, previous_metadata_location = %(old)s
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(table)s
  AND metadata_location = %(old)s
"""


@cache
def file_io() -> PyArrowFileIO:
    """pyiceberg's file I/O over this process's S3 client."""
    return file_io_of(object_store.file_system)


def current_location(connection: postgres.Connection, table: TableName) -> str:
    """Current metadata location of a table, as visible to this connection's tenant.

    Raises:
        Terminal: the catalog has no such table for this tenant.
    """
    location = find_location(connection, table)
    if location is None:
        raise Terminal("the table is not in the catalog", table=".".join(table))
    return location


def find_location(connection: postgres.Connection, table: TableName) -> str | None:
    """Like `current_location`; None when the catalog has no such table."""
    row = connection.execute(CURRENT, [CATALOG, *table]).fetchone()
    return None if row is None else str(row[0])


def begin(connection: postgres.Connection, table: TableName, location: str, kind: str = "TABLE") -> bool:
    """Insert a table or a view into the catalog; False when the name is taken."""
    return connection.execute(BEGIN, [CATALOG, *table, location, kind]).rowcount == 1


def swap(connection: postgres.Connection, table: TableName, old: str, new: str) -> bool:
    """Move the table's pointer from `old` to `new`; False when it no longer was at `old`."""
    values = {"catalog": CATALOG, "namespace": table[0], "table": table[1], "old": old, "new": new}
    return connection.execute(SWAP, values).rowcount == 1


def load_table(table: TableName, location: str, *, history: bool = True) -> Table:
    """Load a table as of one metadata file; a commit through it only stages (see `stage_append`).

    Args:
        history: load all snapshots; otherwise only the current one, which is all that a commit needs:
            pyiceberg copies each snapshot a dozen times for one. Staged metadata always has all.

    Raises:
        Gone: the metadata file does not exist.
        ValueError: it is damaged.
    """
    return _table(table, location, table_metadata.read(location), history=history)


def _table(name: TableName, location: str, document: table_metadata.Document, *, history: bool) -> Table:
    parsed = document if history else table_metadata.current_only(document)
    metadata = TableMetadataUtil.parse_obj(parsed)
    return Table(name, metadata, location, file_io(), _StagingCatalog(document))


def _for_commit(table: Table, keep: int | None = None) -> Table:
    catalog = table.catalog
    assert isinstance(catalog, _StagingCatalog)  # noqa: S101 - tables come from `load_table`
    namespace, name = table.name()
    document = catalog.document
    if keep is not None:
        snapshots = sorted(document.get("snapshots", ()), key=lambda snapshot: snapshot["sequence-number"])
        removed = {snapshot["snapshot-id"] for snapshot in snapshots[: max(0, len(snapshots) + 1 - keep)]}
        document = table_metadata.without_snapshots(document, removed) if removed else document
    return _table((namespace, name), table.metadata_location, document, history=False)


@dataclass(frozen=True)
class Staged:
    """Staged metadata: it becomes current when `old` is swapped for `new`."""

    old: str
    new: str
    snapshot_id: int


def stage_append(table: Table, files: Iterable[DataFile], summary: Mapping[str, str]) -> Staged:
    """Stage a snapshot that adds data files.

    Raises:
        OSError: the object store failed.
    """
    table, old = _for_commit(table), table.metadata_location
    with (
        table.transaction() as transaction,
        Append(Operation.APPEND, transaction, file_io(), snapshot_properties=dict(summary)) as append,
    ):
        for file in files:
            append.append_data_file(file)
    snapshot = table.metadata.current_snapshot_id
    if snapshot is None or table.metadata_location == old:
        raise ValueError(f"nothing was staged for {'.'.join(table.name())}")
    return Staged(old, table.metadata_location, snapshot)


def stage_replace(
    table: Table,
    removed: Iterable[DataFile],
    added: Iterable[DataFile],
    summary: Mapping[str, str],
    schema: Schema | None = None,
    keep: int | None = None,
) -> Staged:
    """Stage an overwrite snapshot that replaces data files.

    Args:
        removed: data files of the current snapshot; not checked here.
        added: their replacements, by the table's current schema, or by `schema`.
        schema: schema of the table from this snapshot on; None: unchanged.
        keep: number of snapshots to keep, at least two, this one included; None: all.

    Raises:
        OSError: the object store failed.
    """
    table, old = _for_commit(table, keep), table.metadata_location
    with table.transaction() as transaction:
        if schema is not None:
            transaction._apply((AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate()))
        with Overwrite(
            Operation.OVERWRITE, transaction, file_io(), snapshot_properties=dict(summary)
        ) as overwrite:
            for file in removed:
                overwrite.delete_data_file(file)
            for file in added:
                overwrite.append_data_file(file)
    snapshot = table.metadata.current_snapshot_id
    if snapshot is None or table.metadata_location == old:
        raise ValueError(f"nothing was staged for {'.'.join(table.name())}")
    return Staged(old, table.metadata_location, snapshot)


def stage_live_only(table: Table) -> Staged | None:
    """Stage a snapshot of the same data files whose manifests name no removed files.

    Returns:
        None: no manifest names removed files.

    Raises:
        OSError: the object store failed.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or not any(names_removed(manifest) for manifest in snapshot.manifests(file_io())):
        return None
    table, old = _for_commit(table), table.metadata_location
    with table.transaction() as transaction, LiveOnly(Operation.OVERWRITE, transaction, file_io()):
        pass
    following = table.metadata.current_snapshot_id
    assert following is not None  # noqa: S101 - there was one before
    return Staged(old, table.metadata_location, following)


def stage_schema(
    table: Table,
    schema: Schema,
    rewritten: Iterable[tuple[DataFile, DataFile]],
    properties: Mapping[str, str],
) -> tuple[str, Schema]:
    """Stage metadata with another schema, and replacements of data files.

    Args:
        schema: the new schema; existing field ids keep their meaning.
        rewritten: pairs of a data file of the current snapshot and its replacement under the new schema.
            If there are any, one overwrite snapshot replaces them all; older snapshots keep their files and
            are read by the schema that they were written with.
        properties: properties set on the table, and in the summary of that snapshot.

    Returns:
        The location of the metadata, and the schema with its id.

    Raises:
        OSError: the object store failed.
    """
    table, pairs = _for_commit(table), list(rewritten)
    number = max(schema.schema_id for schema in table.metadata.schemas) + 1
    following = schema.model_copy(update={"schema_id": number})
    with table.transaction() as transaction:
        transaction._apply((AddSchemaUpdate(schema=following), SetCurrentSchemaUpdate()))
        transaction.set_properties(dict(properties))
        if pairs:
            with Overwrite(
                Operation.OVERWRITE, transaction, file_io(), snapshot_properties=dict(properties)
            ) as overwrite:
                for before, after in pairs:
                    overwrite.delete_data_file(before)
                    overwrite.append_data_file(after)
    return table.metadata_location, following


def write_new_table(
    location: str, schema: Schema, spec: PartitionSpec, properties: dict[str, str]
) -> tuple[str, Schema]:
    """Write the first metadata of a table that is not in the catalog yet.

    Returns:
        Its location, and the schema with the field ids assigned by the table.
    """
    metadata = new_table_metadata(
        schema, spec, UNSORTED_SORT_ORDER, location, {"format-version": "2"} | properties
    )
    provider = load_location_provider(location, metadata.properties)
    metadata_location = provider.new_table_metadata_file_location()
    ToOutputFile.table_metadata(metadata, file_io().new_output(metadata_location))
    return metadata_location, metadata.schema()


class _StagingCatalog(NoopCatalog, MetastoreCatalog):
    """Catalog whose commit only writes the next metadata file.

    Args:
        document: the table's metadata with its full history, of which the table itself may hold a part.
    """

    def __init__(self, document: table_metadata.Document) -> None:
        super().__init__(CATALOG)
        self.document = document

    @override
    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        following = self._update_and_stage_table(table, table.name(), requirements, updates)
        before, after = (
            orjson.loads(metadata.model_dump_json(exclude_none=True))
            for metadata in (table.metadata, following.metadata)
        )
        self.document = table_metadata.followed(self.document, before, after)
        table_metadata.write(self.document, following.metadata_location)
        location = {"metadata-location": following.metadata_location}  # the model accepts only the alias
        return CommitTableResponse(metadata=following.metadata, **location)

    @override
    def _load_file_io(
        self, properties: dict[str, str] | None = None, location: str | None = None
    ) -> PyArrowFileIO:
        return file_io()
