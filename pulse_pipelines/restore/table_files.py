"""The files of a dataset's table, compared with the objects that its folder holds.

The catalog's pointer, and all that it reaches, can be missing after the object store was restored. The newest
metadata file whose manifests are all there is the base from which the table can be repaired.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

import orjson
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import live_table
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import FileGone
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.table_metadata import Document
from pulse_resources.settings import load_settings

LANDED = """
SELECT day, sum(rows)::bigint, max(landed_at) FROM landings
WHERE tenant_id = %s AND dataset_id = %s GROUP BY day
"""
MARGIN = timedelta(hours=1)
"""How far the clocks of Postgres and of a table's writers may differ."""
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Base:
    """A metadata file whose manifests are all there, and what of its other files is gone."""

    location: str
    document: Document
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
    landed: Mapping[date, tuple[int, datetime]]
    """By day: rows by the ledger, and when a commit last changed them."""

    @property
    def is_current(self) -> bool:
        """Whether the catalog's pointer, with its manifests, is there."""
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
        missing = (
            frozenset(day_of(self.base.files[path]) for path in self.base.missing)
            if self.base
            else frozenset()
        )
        if self.dataset.of_entities:
            return sorted(missing)
        counts = self._counts
        wrong = {day for day, (rows, _) in self.landed.items() if counts[day] != rows}
        return sorted(missing | wrong | (counts.keys() - self.landed.keys()) | self.doubtful)

    @cached_property
    def doubtful(self) -> frozenset[date]:
        """Days of a base that is not current whose rows may be others, though their number is right.

        A commit changed them at about the time of the base's metadata, or later.
        """
        if self.base is None or self.is_current or self.dataset.of_entities:
            return frozenset()
        written = datetime.fromtimestamp(self.base.document["last-updated-ms"] / 1000, UTC)
        counts = self._counts
        return frozenset(
            day
            for day, (rows, at) in self.landed.items()
            if rows == counts[day] > 0 and at > written - MARGIN
        )

    @cached_property
    def _counts(self) -> Counter[date]:
        """Rows of the base by day."""
        counts: Counter[date] = Counter()
        for file in self.base.files.values() if self.base else ():
            counts[day_of(file)] += file.record_count
        return counts


def day_of(file: DataFile) -> date:
    """The day of a data file's rows, from its partition."""
    day = file.partition[0]
    return day if isinstance(day, date) else _EPOCH + timedelta(days=day)


def compare(tenant: Tenant, dataset: Dataset) -> TableFiles:
    """Compare a dataset's table with its folder.

    Raises:
        Terminal: the catalog has no such table.
        OSError: the object store failed.
    """
    name = (tenant.namespace, dataset.slug)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        pointer = iceberg.current_location(connection, name)
        rows = connection.execute(LANDED, [tenant.tenant_id, dataset.dataset_id])
        landed = {day: (count, at) for day, count, at in rows}
    folder = tenant.table_location(load_settings().object_store.bucket, dataset.slug, dataset.dataset_id)
    objects = frozenset(entry.path for entry in object_store.listed(folder))
    return TableFiles(tenant, dataset, pointer, _base(dataset, name, pointer, objects), landed)


def _base(dataset: Dataset, name: iceberg.TableName, pointer: str, objects: frozenset[str]) -> Base | None:
    for location in _newest_first(pointer, objects):
        try:
            document = table_metadata.read(location)
            table = iceberg.load_table(name, location)
            if not _is_of(dataset, document, table):
                continue
            files = live_table.live_files(table)
        except (FileGone, FileNotFoundError):
            continue
        current = document.get("current-snapshot-id")
        unreadable = frozenset(
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.snapshot_id != current and not _readable(table, snapshot.snapshot_id, objects)
        )
        return Base(location, document, table, files, frozenset(files.keys() - objects), unreadable)
    return None


def _newest_first(pointer: str, objects: frozenset[str]) -> Iterator[str]:
    """The catalog's metadata file, then the others that the folder holds."""
    versions = {path: version for path in objects if (version := table_metadata.version(path)) is not None}
    if pointer in versions:
        yield pointer
    yield from sorted(versions.keys() - {pointer}, key=lambda path: (versions[path], path), reverse=True)


def _is_of(dataset: Dataset, document: Document, table: Table) -> bool:
    """Whether the metadata is this dataset's, with the columns that the dataset has now."""
    columns = {(field["id"], field["name"]) for field in orjson.loads(dataset.table_schema)["fields"]}
    fields = {(field.field_id, field.name) for field in table.schema().fields}
    owner = document.get("properties", {}).get(iceberg.DATASET_PROPERTY)
    return owner == str(dataset.dataset_id) and columns == fields


def _readable(table: Table, snapshot_id: int, objects: frozenset[str]) -> bool:
    """Whether the folder holds all files of a snapshot."""
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None  # noqa: S101 - the id is of this table's metadata
    if snapshot.manifest_list not in objects:
        return False
    manifests = snapshot.manifests(table.io)
    if any(manifest.manifest_path not in objects for manifest in manifests):
        return False
    return all(
        entry.data_file.file_path in objects
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    )
