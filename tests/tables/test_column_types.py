"""The types of columns: one entry each, and docs/column-types.md says the same."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, NestedField

from pulse_pipelines.domain.schemas.columns import Kind
from pulse_pipelines.tables import file_metrics
from pulse_pipelines.tables.column_types import SCALARS

PAGE = Path(__file__).parents[2] / "docs" / "column-types.md"


def test_every_kind_without_parts_has_an_entry() -> None:
    assert {*SCALARS, Kind.STRUCT, Kind.LIST} == set(Kind)


def test_the_page_has_a_row_for_each_type() -> None:
    rows = re.findall(r"^\| (.+) \| `(.+)` \| `(.+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (scalar.declared_by, str(scalar.iceberg), str(scalar.arrow)) for scalar in SCALARS.values()
    ]


@pytest.mark.parametrize("content", [[b"\xff\xfe", b"a"], [b"", None]])
def test_a_type_that_pulse_does_not_write_has_no_bounds(content: list[bytes | None]) -> None:
    """Rather than those of a text that it is not."""
    footer: list[pq.FileMetaData] = []
    table = pa.table({"raw": pa.array(content, pa.binary())})
    pq.write_table(table, pa.BufferOutputStream(), metadata_collector=footer)
    metrics = file_metrics.of_footer(Schema(NestedField(1, "raw", BinaryType())).model_dump_json(), footer[0])
    assert metrics.value_counts == {1: 2}
    assert metrics.lower_bounds == metrics.upper_bounds == {}
