"""The files of a dataset's table, compared with the objects that its folder holds.

The catalog's pointer, and all that it reaches, can be missing after the object store was restored. The newest
metadata file whose manifests are all there is the base from which the table can be repaired.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

import orjson
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import live_table
from pulse_pipelines.tables.file_metrics import day_of
from pulse_pipelines.tables.live_table import current_location
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import FileGone
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.table_metadata import Document
from pulse_resources.settings import load_settings

LANDED = """
SELECT day, sum(rows)::bigint FROM landings WHERE tenant_id = %s AND dataset_id = %s GROUP BY day
"""
# A landing that is older may be of a snapshot that has expired.
NOT_IN_BASE = """
SELECT DISTINCT day FROM landings
WHERE tenant_id = %s AND dataset_id = %s AND landed_at > %s AND snapshot_id <> ALL(%s)
    AND (rows <> 0 OR files <> 0)
"""
TRIES = 3
"""Comparisons of a table that changes meanwhile."""
MARGIN = timedelta(hours=1)
"""How far the clocks of Postgres and of a table's writers may differ."""


@dataclass(frozen=True)
class Base:
    """A metadata file whose manifests all exist, and the other files of it that are gone."""

    location: str
    document: Document
    """With columns that a move added since."""
    table: Table
    files: Mapping[str, DataFile]
    """The data files of the current snapshot, by path."""
    missing: frozenset[str]
    """Those of them that the folder does not hold."""
    unreadable: frozenset[int]
    """Earlier snapshots that name a file that is gone."""

    @property
    def missing_files(self) -> list[DataFile]:
        return [self.files[path] for path in self.missing]


@dataclass(frozen=True)
class TableFiles:
    """A dataset's table as the catalog points at it, and as the object store holds it."""

    tenant: Tenant
    dataset: Dataset
    pointer: str
    base: Base | None
    """None: the folder holds no metadata file that can be used."""
    landed: Mapping[date, int]
    """Rows by day, by the ledger."""
    later: frozenset[date]
    """Days changed by a commit whose snapshot is not one of the base's."""

    @property
    def name(self) -> iceberg.TableName:
        return self.tenant.namespace, self.dataset.slug

    @property
    def is_current(self) -> bool:
        """Whether the current metadata and its manifests exist."""
        return self.base is not None and self.base.location == self.pointer

    @property
    def is_whole(self) -> bool:
        return self.is_current and not self.days and not self.unreadable

    @property
    def unreadable(self) -> frozenset[int]:
        """Earlier snapshots that name a file that is gone."""
        return self.base.unreadable if self.base else frozenset()

    @cached_property
    def days(self) -> list[date]:
        """The days that have to be rebuilt: their files are gone, or are not those of the ledger."""
        missing = frozenset(map(day_of, self.base.missing_files if self.base else ()))
        counts = self._counts
        wrong = {day for day in counts.keys() | self.landed.keys() if counts[day] != self.landed.get(day, 0)}
        return sorted(missing | wrong | self.doubtful)

    @cached_property
    def doubtful(self) -> frozenset[date]:
        """Days whose rows may be others than the ledger's, though their number is right."""
        return frozenset(day for day in self.later if self.landed[day] == self._counts[day] > 0)

    @cached_property
    def _counts(self) -> Counter[date]:
        """Rows of the base by day."""
        counts: Counter[date] = Counter()
        for file in self.base.files.values() if self.base else ():
            counts[day_of(file)] += file.record_count
        return counts


def compare(tenant: Tenant, dataset: Dataset) -> TableFiles:
    """Compare a dataset's table with its folder.

    Raises:
        Terminal: the catalog has no such table.
        OSError: the object store failed.
    """
    for _ in range(TRIES):
        files = _compare(tenant, dataset)
        if files.is_whole or files.pointer == current_location(tenant.tenant_id, files.name):
            break  # otherwise upkeep may have removed files that the table named
    return files


def _compare(tenant: Tenant, dataset: Dataset) -> TableFiles:
    name = (tenant.namespace, dataset.slug)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        pointer = iceberg.current_location(connection, name)
        landed = dict(connection.execute(LANDED, [tenant.tenant_id, dataset.dataset_id]).fetchall())
    folder = tenant.table_location(load_settings().object_store.bucket, dataset.slug, dataset.dataset_id)
    objects = frozenset(entry.path for entry in object_store.listed(folder))
    base = _base(dataset, name, pointer, objects)
    later = frozenset[date]()
    if base is not None and base.location != pointer:
        since = datetime.fromtimestamp(base.document["last-updated-ms"] / 1000, UTC) - MARGIN
        snapshots = [snapshot.snapshot_id for snapshot in base.table.metadata.snapshots]
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            values = [tenant.tenant_id, dataset.dataset_id, since, snapshots]
            later = frozenset(day for (day,) in connection.execute(NOT_IN_BASE, values))
    return TableFiles(tenant, dataset, pointer, base, landed, later & landed.keys())


def _base(dataset: Dataset, name: iceberg.TableName, pointer: str, objects: frozenset[str]) -> Base | None:
    ordered = table_metadata.newest_first(objects)
    for location in sorted(ordered, key=lambda location: location != pointer):  # the catalog's before others
        try:
            document = table_metadata.read(location)
            table = iceberg.load_table(name, location)
            fitted = _fitted(dataset, document)
            if fitted is None:
                continue
            files = live_table.live_files(table)
        except (FileGone, FileNotFoundError):
            continue
        current = document.get("current-snapshot-id")
        manifests = dict[str, bool]()
        unreadable = frozenset(
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.snapshot_id != current and not _readable(table, snapshot, objects, manifests)
        )
        missing = frozenset(files.keys() - objects)
        return Base(location, fitted, table, files, missing, unreadable)
    return None


def _fitted(dataset: Dataset, document: Document) -> Document | None:
    """The document with the columns that the dataset has now; None: it cannot have them, or is not its own.

    Columns that a move added since then are null in all rows. One that a move replaced would lose its values.
    """
    if document.get("properties", {}).get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
        return None
    schema, schemas = orjson.loads(dataset.table_schema), document["schemas"]
    current = next(
        document_schema
        for document_schema in schemas
        if document_schema["schema-id"] == document["current-schema-id"]
    )
    before, now = (
        [_column(field) for field in document_schema["fields"]] for document_schema in (current, schema)
    )
    if before == now:
        return document
    if any(column not in now for column in before):
        return None
    number = max(document_schema["schema-id"] for document_schema in schemas) + 1
    last = max(document["last-column-id"], Schema.model_validate(schema).highest_field_id)
    return document | {
        "schemas": [*schemas, schema | {"schema-id": number}],
        "current-schema-id": number,
        "last-column-id": last,
    }


def _column(field: Document) -> tuple[int, str, object]:
    return field["id"], field["name"], field["type"]


def _readable(table: Table, snapshot: Snapshot, objects: frozenset[str], manifests: dict[str, bool]) -> bool:
    """Whether the folder holds all files of a snapshot.

    Args:
        manifests: by path, whether it holds a manifest and its files; those that are read are added.
    """
    if snapshot.manifest_list not in objects:
        return False
    for manifest in snapshot.manifests(table.io):
        path = manifest.manifest_path
        if path not in manifests:
            manifests[path] = path in objects and all(
                entry.data_file.file_path in objects
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            )
        if not manifests[path]:
            return False
    return True
