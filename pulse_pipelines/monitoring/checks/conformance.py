"""Check `schema_conformance`: a table follows its published schema, and a sample of its rows is valid."""

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, StructType

from pulse_pipelines.domain.as_sent import event_data
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.violations import violation
from pulse_pipelines.monitoring.checks.reference_validator import NotJudgedError, ReferenceValidator
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.tables import arrow_columns, rewrite_file
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, table_schema
from pulse_resources import object_store
from pulse_resources.errors import Terminal

SAMPLE_ROWS, SAMPLE_FILES = 100, 10
"""Rows per dataset that are validated again, and files that they are drawn from."""
VALIDATION_S = 10.0
"""Seconds in which they are validated by the package `jsonschema`; then by ingestion's validator."""


def schema_conformance(subject: Subject) -> CheckResult:
    """Compare the table's columns with the published schema, and validate a random sample of its rows again.

    Each row is validated against the schema version that it names, by the package `jsonschema`.
    """
    result = CheckResult()
    actual = subject.table.schema()
    expected, existing = _types(table_schema(subject.dataset.columns, subject.dataset.kind)), _types(actual)
    for name in expected.keys() | existing.keys():
        if expected.get(name) != existing.get(name):
            result.problems.append(
                f"column {name} is {existing.get(name, 'missing')}, "
                f"the schema says {expected.get(name, 'nothing of it')}"
            )
    if not result.problems and Schema.model_validate_json(subject.dataset.table_schema) != actual:
        result.problems.append("the registry's copy of the table's schema is not the table's")
    if subject.files and not result.problems:
        rows = _sample(subject)
        invalid = _invalid(subject.dataset, rows)
        result.numbers |= {"rows_validated": len(rows), "invalid_rows": len(invalid)}
        result.problems.extend(invalid[:5])
    return result


def _types(schema: Schema) -> Mapping[str, str]:
    return {
        field.name: _text(field.field_type) + (" required" if field.required else "")
        for field in schema.fields
    }


def _text(kind: IcebergType) -> str:
    """A type without field ids and member order, which do not matter for conformance."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(sorted(f'{f.name}: {_text(f.field_type)}' for f in kind.fields))}>"
    return f"list<{_text(kind.element_type)}>" if isinstance(kind, ListType) else str(kind)


def _sample(subject: Subject) -> list[dict[str, Any]]:
    """Rows drawn at random, fitted to the table's schema; files may follow earlier schemas."""
    schema = arrow_columns.arrow_schema(subject.table.schema().model_dump_json())
    files = random.sample(subject.files, min(SAMPLE_FILES, len(subject.files)))
    counts = [file.record_count for file in files]
    positions = sorted(random.sample(range(sum(counts)), min(SAMPLE_ROWS, sum(counts))))
    rows: list[dict[str, Any]] = []
    for file, count in zip(files, counts, strict=True):
        end = bisect_left(positions, count)
        drawn, positions = positions[:end], [position - count for position in positions[end:]]
        try:
            for batch in _read_rows(file.file_path, drawn):
                rows.extend(rewrite_file.fitted(batch, schema).to_pylist())
        except pa.ArrowInvalid as error:
            raise Terminal(f"a file of the table is damaged: {error}", file=file.file_path) from error
    return rows


def _read_rows(path: str, positions: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Read rows of a file by their ascending positions, and only the row groups that have some."""
    if not positions:
        return
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        file, begin, at = pq.ParquetFile(content), 0, 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if at < len(positions) and positions[at] < end:
                for batch in file.iter_batches(row_groups=[group]):
                    until = bisect_left(positions, begin + batch.num_rows, at)
                    if at < until:
                        yield batch.take(pa.array([position - begin for position in positions[at:until]]))
                    begin, at = begin + batch.num_rows, until
            begin = end


def _invalid(dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    problems, reference = [], ReferenceValidator(VALIDATION_S)
    for row in rows:
        if row.get(IS_DELETED):
            continue  # a tombstone has no data
        place = f"partition {row['_kafka_partition']}, offset {row['_offset']}"
        document = dataset.documents.get(row["schema_version"])
        if document is None:
            problems.append(f"{place}: the dataset never followed version {row['schema_version']}")
        elif (pointer := _violation(reference, document, event_data(dataset, row, document))) is not None:
            # The value is left out: results are stored where an erasure cannot delete them.
            problems.append(f"{place}: at /data{pointer} it does not follow the schema"[:300])
    return problems


def _violation(reference: ReferenceValidator, document: str, data: Any) -> str | None:
    """JSON pointer of the first violation; None if valid."""
    try:
        return reference.find_violation(document, data)
    except NotJudgedError:
        broken = violation(document, data)
        return broken[0] if broken else None
