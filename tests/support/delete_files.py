"""Files of deletes by equality, as stream processors write them; the library of the tests writes none."""

import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record


class _Writer(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_equal(table: Table, values: Mapping[str, Any], *partition: Any) -> None:
    """Commit a file that deletes the rows with these values, by column.

    Args:
        partition: the partition that the file is of, by the table's spec.
    """
    schema = table.schema()
    numbers = {name: schema.find_field(name).field_id for name in values}
    columns = [
        pa.field(name, schema.as_arrow().field(name).type, metadata={"PARQUET:field_id": str(number)})
        for name, number in numbers.items()
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(values)], schema=pa.schema(columns)), sink)
    content = sink.getvalue().to_pybytes()
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    with table.io.new_output(path).create() as output:
        output.write(content)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=1,
        file_size_in_bytes=len(content),
        equality_ids=list(numbers.values()),
        spec_id=table.spec().spec_id,
    )
    _commit(table, file)


def _commit(table: Table, file: DataFile) -> None:
    """Commit a snapshot with one more file of deletes."""
    current, number = table.current_snapshot(), table.metadata.new_snapshot_id()
    assert current is not None
    listed = f"{table.location()}/metadata/snap-{number}.avro"
    output = table.io.new_output(listed)
    sequence = table.metadata.last_sequence_number + 1
    with write_manifest_list(2, output, number, current.snapshot_id, sequence, "null") as writer:
        writer.add_manifests([_manifest(table, number, file), *current.manifests(table.io)])
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=current.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=table.metadata.last_updated_ms + 1,
        manifest_list=listed,
        summary=Summary(Operation.OVERWRITE),
        schema_id=table.schema().schema_id,
    )
    with table.transaction() as transaction:
        transaction._apply(
            (
                AddSnapshotUpdate(snapshot=snapshot),
                SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=number),
            ),
            (),
        )


def _manifest(table: Table, snapshot_id: int, file: DataFile) -> ManifestFile:
    output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro")
    with _Writer(table.spec(), table.schema(), output, snapshot_id, "null") as writer:
        writer.add_entry(
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file)
        )
    return writer.to_manifest_file()
