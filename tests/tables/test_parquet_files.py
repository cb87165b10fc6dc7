"""Data files of entities have smaller row groups: a page of a log reads one or two of them."""

import io
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.conform import SCHEMA, TENANT, dataset, messages
from support.ingest import event

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.iceberg_schema import table_properties
from pulse_pipelines.tables.raw_zone import LINE

ROW_GROUP_BYTES = "write.parquet.row-group-size-bytes"


@pytest.mark.parametrize(("kind", "groups"), [(DatasetKind.EVENTS, 1), (DatasetKind.ENTITIES, 2)])
def test_row_groups_by_the_kind_of_the_dataset(kind: DatasetKind, groups: int) -> None:
    of = dataset(SCHEMA, kind=kind)
    conformed = TopicConformer(Scope(TENANT, (of,)), "batch", UNLIMITED).chunk(messages([event("e")]))
    row = conformed.tables["orders"].drop_columns([LINE])
    rows = pa.concat_tables([row] * (parquet_files.VERSIONS_GROUP + 1))
    _, content = parquet_files.encode(of, date(2026, 11, 19), "s3://x/y.parquet", rows)
    assert pq.ParquetFile(content).metadata.num_row_groups == groups


def test_compactions_follow() -> None:
    of_events, of_entities = (int(table_properties(kind)[ROW_GROUP_BYTES]) for kind in DatasetKind)
    assert of_entities < of_events


class Full(io.RawIOBase):
    """A place that holds only so many bytes."""

    def __init__(self, most: int) -> None:
        self.left = most

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise MemoryError("the first error")
        return len(data)


@pytest.mark.parametrize("most", [0, 100, 1_000])
def test_an_error_while_a_file_is_written_is_raised_unchanged(most: int) -> None:
    rows = pa.table({"a": ["x" * 1_000] * 1_000, "b": list(range(1_000))})
    sink = pa.PythonFile(Full(most), mode="w")

    def write() -> None:
        with parquet_files.parquet_writer(sink, rows.schema, rows.num_rows, []) as writer:
            writer.write_table(rows)

    with pytest.raises(MemoryError, match="the first error"):
        write()
