"""Search for an event's row in the data files that may hold it: latest first, within a limit of bytes."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, EqualTo, LessThan
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query.snapshots import store_errors_explained
from pulse_pipelines.tables import live_table
from pulse_resources import object_store

COLUMNS = (
    "id",
    "timestamp",
    "ingested_at",
    "schema_version",
    "trace_id",
    "_batch",
    "_kafka_partition",
    "_offset",
)
MAX_FILES = 200
MAX_BYTES = 64 * 1024 * 1024
"""Maximum bytes of the columns that are read."""


@dataclass(frozen=True)
class FoundRow:
    """A row of a dataset, with its data file."""

    file: str
    event_id: str
    timestamp: datetime
    received_at: datetime
    schema_version: int
    trace_id: str | None
    batch_id: str
    partition: int
    offset: int

    @property
    def day(self) -> date:
        return self.timestamp.astimezone(UTC).date()


@dataclass(frozen=True)
class Search:
    """Result of searching a table."""

    row: FoundRow | None
    candidates: int
    """Files that may hold it according to their column bounds."""
    read: int

    @property
    def complete(self) -> bool:
        """Whether every candidate was read."""
        return self.row is not None or self.read == self.candidates


def with_id(tenant: Tenant, dataset: Dataset, event_id: str, before: int, day: date | None) -> Search:
    """Search for the row with an event id.

    Args:
        before: offset, in whatever partition, that the event precedes.
        day: day of its timestamp, if known.

    Raises:
        Terminal: the table is missing or damaged.
        Transient: the object store does not answer.
    """
    within: BooleanExpression = And(_equal("id", event_id), LessThan("_offset", before))  # type: ignore[call-arg,arg-type]
    if day is not None:
        within = And(within, live_table.of_day(day))
    return _search(tenant, dataset, within, pc.field("id") == event_id)


def at(tenant: Tenant, dataset: Dataset, partition: int, offset: int) -> Search:
    """Search for the row of the event at a position. Raises as `with_id`."""
    within = And(_equal("_kafka_partition", partition), _equal("_offset", offset))
    mask = (pc.field("_kafka_partition") == partition) & (pc.field("_offset") == offset)
    return _search(tenant, dataset, within, mask)


def _equal(column: str, value: str | int) -> BooleanExpression:
    return EqualTo(column, value)  # type: ignore[call-arg,arg-type]


def _search(tenant: Tenant, dataset: Dataset, within: BooleanExpression, mask: pc.Expression) -> Search:
    def search(table: Table) -> Search:
        schema = table.schema()
        field_ids = [schema.find_field(name).field_id for name in COLUMNS]
        files = [task.file for task in table.scan(row_filter=within).plan_files()]
        files.sort(key=lambda file: _last(file, field_ids[-1]), reverse=True)
        size = read = 0
        for file in files[:MAX_FILES]:
            size += sum(file.column_sizes.get(field_id, 0) for field_id in field_ids)
            if read and size > MAX_BYTES:
                break
            read += 1
            if (row := _row(file, mask)) is not None:
                return Search(row, len(files), read)
        return Search(None, len(files), read)

    with store_errors_explained():
        return live_table.of_current(search, tenant, dataset)


def _last(file: DataFile, field_id: int) -> int:
    """Last offset in the file, that of its latest event."""
    bound = (file.upper_bounds or {}).get(field_id)
    return 2**63 - 1 if bound is None else int(struct.unpack("<q", bound)[0])


def _row(file: DataFile, mask: pc.Expression) -> FoundRow | None:
    with object_store.file_system().open_input_file(object_store.key(file.file_path)) as content:
        table = pq.read_table(content, columns=list(COLUMNS), filters=mask)
    rows: Sequence[dict[str, Any]] = table.to_pylist()
    return FoundRow(file.file_path, *(rows[0][name] for name in COLUMNS)) if rows else None
