"""Curated tables: rows of days, any of which can be replaced; the schema follows the rollup's result."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DateType, DecimalType, IcebergType, NestedField

from pulse_pipelines.curated.rollup import PARTITION_FIELD, Rollup
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import arrow_columns, file_metrics, live_table, parquet_files
from pulse_pipelines.tables.column_types import ICEBERG
from pulse_pipelines.tables.commit import Next
from pulse_pipelines.tables.iceberg_schema import PROPERTIES
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import TableName
from pulse_resources.settings import load_settings

SOURCE_PROPERTY = "pulse.curated-from"
"""Table property: the id of the dataset that the rows are computed from."""
MANIFESTS = 8
"""Manifests at which a commit rewrites them as one: every commit reads them all."""
SNAPSHOTS = 10
"""Snapshots that a table keeps; few, because earlier results are not queried."""
DAY = NestedField(1, "day", DateType())
PARTITIONED_BY_DAY = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=DayTransform(), name=PARTITION_FIELD)
)


@dataclass(frozen=True)
class Following:
    """The staged next state of a curated table."""

    next: Next | None
    """None: the table does not change."""
    written: tuple[str, ...] = ()
    """New data files, not yet in the table."""

    def discard(self) -> None:
        """Delete the staged files. They must not be committed afterwards.

        Raises:
            OSError: the object store failed.
        """
        if self.next is None:
            return
        written = [*self.written, self.next.new]
        with suppress(FileNotFoundError):  # an erasure has deleted it already
            snapshot = iceberg.load_table(self.next.table, self.next.new, history=False).current_snapshot()
            if snapshot is not None:
                written.append(snapshot.manifest_list)
                written += [
                    manifest.manifest_path
                    for manifest in snapshot.manifests(iceberg.file_io())
                    if manifest.added_snapshot_id == snapshot.snapshot_id
                ]
        object_store.delete(written)


def stage(tenant: Tenant, dataset: Dataset, rollup: Rollup, rows: Mapping[date, pa.Table]) -> Following:
    """Stage data files and metadata that replace the rows of these days; no pointer refers to them yet.

    Args:
        rows: by day, without the column `day`.

    Raises:
        Terminal: another table has the name.
        OSError: the object store failed.
    """
    name = tenant.curated_table(dataset.slug, rollup.name)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        location = iceberg.find_location(connection, name)
    filled = {day: row for day, row in rows.items() if len(row)}
    if location is None:
        if not filled:
            return Following(None)
        table = _new(tenant, dataset.dataset_id, name, _target_columns(rollup, filled))
    else:
        table = iceberg.load_table(name, location)
        if table.properties.get(SOURCE_PROPERTY) != str(dataset.dataset_id):
            raise Terminal(
                "another table has the name of the curated one", tenant=tenant.slug, table=".".join(name)
            )
    live = live_table.live_files(table)
    removed = [file for file in live.values() if file_metrics.day_of(file) in rows]
    if not removed and not filled:
        return Following(None)
    schema = _following(table, _target_columns(rollup, filled)) if filled else table.schema()
    added = [_write(table, schema, day, rows) for day, rows in filled.items()]
    written = tuple(file.file_path for file in added)
    if _manifests(table) >= MANIFESTS:  # enter every file again, in one manifest
        added += [file for file in live.values() if file_metrics.day_of(file) not in rows]
        removed = list(live.values())
    changed = schema if schema.schema_id != table.schema().schema_id else None
    summary = {"pulse.rollup": rollup.name}
    staged = iceberg.stage_replace(table, removed, added, summary, changed, keep=SNAPSHOTS)
    old = None if location is None else staged.old
    return Following(Next(name, old, staged.new), written)


def _new(tenant: Tenant, dataset_id: UUID, name: TableName, columns: Sequence[NestedField]) -> Table:
    bucket = load_settings().object_store.bucket
    location, _ = iceberg.write_new_table(
        tenant.table_location(bucket, name[1], dataset_id),
        Schema(*columns),
        PARTITIONED_BY_DAY,
        PROPERTIES | {"pulse.tenant": tenant.slug, SOURCE_PROPERTY: str(dataset_id)},
    )
    return iceberg.load_table(name, location)


def _target_columns(rollup: Rollup, rows: Mapping[date, pa.Table]) -> Sequence[NestedField]:
    if rollup.schema is not None:
        return rollup.schema.fields
    types = {field.name: _iceberg(field.type) for table in rows.values() for field in table.schema}
    return [DAY, *(NestedField(n, name, kind) for n, (name, kind) in enumerate(types.items(), 2))]


def _iceberg(kind: pa.DataType) -> IcebergType:
    return DecimalType(kind.precision, kind.scale) if pa.types.is_decimal(kind) else ICEBERG[kind]


def _following(table: Table, columns: Sequence[NestedField]) -> Schema:
    """The table's schema, or its successor: a column of the same name and type keeps its field id."""
    current = table.schema()
    current_columns = {field.name: field for field in current.fields}
    ids = itertools.count(table.metadata.last_column_id + 1)
    fields = [
        current_columns[field.name]
        if field.name in current_columns and _shape(current_columns[field.name]) == _shape(field)
        else assign_fresh_schema_ids(Schema(field), lambda: next(ids)).fields[0]
        for field in columns
    ]
    if tuple(fields) == current.fields:
        return current
    number = max(schema.schema_id for schema in table.metadata.schemas) + 1
    return Schema(*fields, schema_id=number)


def _shape(field: NestedField) -> str:
    """A type as text, without the table's field ids."""
    return str(assign_fresh_schema_ids(Schema(field)).fields[0].field_type)


def _write(table: Table, schema: Schema, day: date, rows: pa.Table) -> DataFile:
    text = schema.model_dump_json()
    dated = rows.append_column("day", pa.array([day] * len(rows), pa.date32()))
    target = arrow_columns.arrow_schema(text)
    content = dated.select(target.names).cast(target)
    collected: list[pq.FileMetaData] = []
    sink = pa.BufferOutputStream()
    with parquet_files.parquet_writer(sink, target, len(rows), collected) as writer:
        writer.write_table(content)
    path, encoded = f"{table.location()}/data/day={day}/{parquet_files.token()}.parquet", sink.getvalue()
    object_store.put(path, encoded)
    return file_metrics.data_file(
        path, day, len(rows), encoded.size, file_metrics.of_footer(text, collected[0])
    )


def _manifests(table: Table) -> int:
    snapshot = table.current_snapshot()
    return len(snapshot.manifests(table.io)) if snapshot else 0
