"""`schema_conformance`: a table is what its published schema says, and its rows are valid by it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, StructType

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schema import violation
from pulse_pipelines.monitoring.checks.subject import Finding, Subject
from pulse_pipelines.query.as_sent import event_data
from pulse_pipelines.tables import arrow_columns, rewrite_file
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, table_schema
from pulse_resources import object_store
from pulse_resources.errors import Terminal

SAMPLE_ROWS = 100
"""Rows per dataset that are validated again."""


def schema_conformance(subject: Subject) -> Finding:
    """The table has the columns of the published schema, and a sample of rows validates again.

    Each row is validated by the version of the schema that it names.
    """
    finding = Finding()
    actual = subject.table.schema()
    wanted, there = _types(table_schema(subject.dataset.columns, subject.dataset.kind)), _types(actual)
    for name in wanted.keys() | there.keys():
        if wanted.get(name) != there.get(name):
            finding.problems.append(
                f"column {name} is {there.get(name, 'missing')}, "
                f"the schema says {wanted.get(name, 'nothing of it')}"
            )
    if not finding.problems and Schema.model_validate_json(subject.dataset.table_schema) != actual:
        finding.problems.append("the registry's copy of the table's schema is not the table's")
    if subject.files and not finding.problems:
        rows = _sample(subject)
        invalid = _invalid(subject.dataset, rows)
        finding.numbers |= {"rows_validated": len(rows), "invalid_rows": len(invalid)}
        finding.problems.extend(invalid[:5])
    return finding


def _types(schema: Schema) -> Mapping[str, str]:
    return {
        field.name: _text(field.field_type) + (" required" if field.required else "")
        for field in schema.fields
    }


def _text(kind: IcebergType) -> str:
    """A type without field ids and without the order of members, which tell nothing about conformance."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(sorted(f'{f.name}: {_text(f.field_type)}' for f in kind.fields))}>"
    return f"list<{_text(kind.element_type)}>" if isinstance(kind, ListType) else str(kind)


def _sample(subject: Subject) -> list[dict[str, Any]]:
    """The first rows of the files, which may be of earlier schemas, as the table's schema has them."""
    schema = arrow_columns.arrow_schema(subject.table.schema().model_dump_json())
    rows: list[dict[str, Any]] = []
    for path in (file.file_path for file in subject.files):
        try:
            with object_store.file_system().open_input_file(object_store.key(path)) as content:
                for batch in pq.ParquetFile(content).iter_batches(SAMPLE_ROWS):
                    rows.extend(rewrite_file.fitted(batch, schema).to_pylist())
                    if len(rows) >= SAMPLE_ROWS:
                        return rows[:SAMPLE_ROWS]
        except pa.ArrowInvalid as error:
            raise Terminal(f"a file of the table is damaged: {error}", file=path) from error
    return rows


def _invalid(dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    problems = []
    for row in rows:
        if row.get(IS_DELETED):
            continue  # there is nothing in it
        place = f"partition {row['_kafka_partition']}, offset {row['_offset']}"
        document = dataset.documents.get(row["schema_version"])
        if document is None:
            problems.append(f"{place}: the dataset never followed version {row['schema_version']}")
        elif found := violation(document, event_data(dataset, row, document)):
            # Not what the row says: a finding is kept where no erasure reaches.
            problems.append(f"{place}: at /data{found[0]} it does not follow the schema"[:300])
    return problems
