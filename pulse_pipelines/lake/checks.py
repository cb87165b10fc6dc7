"""The facts behind the asset checks, for one tenant's dataset. No Dagster in here."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, StructType

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schema import FieldType, Kind, violation
from pulse_pipelines.domain.schema import columns as declared_columns
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import duck
from pulse_pipelines.stages import columns, recast
from pulse_pipelines.stages.table import table_schema
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import Terminal
from pulse_resources.settings import load_settings

SAMPLE_ROWS = 100
"""Rows per dataset that are validated again; the isolation check reads every row's owner."""

OWNERS = """
SELECT count(*), count(*) FILTER (tenant_id IS DISTINCT FROM ? OR dataset_id IS DISTINCT FROM ?)
FROM read_parquet(?)
"""
UNFORCED = """
SELECT relname FROM pg_class
WHERE relname = ANY(%s) AND relkind = 'r' AND NOT (relrowsecurity AND relforcerowsecurity)
"""
RLS_TABLES = (
    "pdm_tenants",
    "pdm_schemas",
    "pdm_datasets",
    "processed_event_ids",
    "ingest_ranges",
    "ingest_positions",
    "landings",
    "raw_objects",
    "dead_letters",
    "dead_letter_outbox",
    "usage",
    "api_keys",
    "quotas",
    "rates",
    "intake",
    "dataset_versions",
    "deleted_datasets",
    "backfills",
    "iceberg_tables",
    "iceberg_namespace_properties",
)


@dataclass
class Finding:
    """What a check saw of one dataset: numbers, and every way in which it is wrong."""

    numbers: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """A dataset to check, and the batch whose files matter (None: the whole table)."""

    tenant: Tenant
    dataset: Dataset
    table: Table
    files: tuple[str, ...]


def subject(tenant: Tenant, slug: str, batch_id: str | None) -> Subject:
    """Load what the checks look at, in the tenant's RLS session.

    Raises:
        Terminal: the dataset's table or its metadata is gone.
        NotFound: the tenant has no such dataset.
    """
    current = registry.current_table(tenant, slug)
    name = (tenant.namespace, slug)
    table = iceberg.load_table(name, current.metadata_location)
    return Subject(tenant, current.dataset, table, tuple(_live_files(table, batch_id)))


def _live_files(table: Table, batch_id: str | None) -> list[str]:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    wanted = {
        s.snapshot_id
        for s in table.snapshots()
        if batch_id is None
        or (s.summary is not None and s.summary.additional_properties.get("pulse.batch-id") == batch_id)
    }
    return [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if batch_id is None or manifest.added_snapshot_id in wanted
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def tenant_isolation(subject: Subject) -> Finding:
    """Namespace, prefix of every file, owner of every row, and row-level security itself."""
    tenant, dataset, finding = subject.tenant, subject.dataset, Finding()
    bucket = load_settings().object_store.bucket
    location = tenant.table_location(bucket, dataset.slug, dataset.dataset_id)
    if subject.table.location() != location:
        finding.problems.append(f"the table is at {subject.table.location()}, not at {location}")
    strays = [path for path in subject.files if not path.startswith(f"{location}/")]
    finding.problems.extend(f"a data file is outside the tenant's prefix: {p}" for p in strays[:5])
    if subject.files:
        with duck.connect() as connection:
            rows, foreign = connection.execute(
                OWNERS, [str(tenant.tenant_id), str(dataset.dataset_id), list(subject.files)]
            ).fetchone() or (0, 0)
        finding.numbers |= {"rows": rows, "foreign_rows": foreign}
        if foreign:
            finding.problems.append(f"{foreign} rows belong to another tenant or dataset")
    finding.numbers |= {"files": len(subject.files), "stray_files": len(strays)}
    finding.problems.extend(_rls_problems(tenant, dataset))
    return finding


def _rls_problems(tenant: Tenant, dataset: Dataset) -> list[str]:
    with postgres.tenant_transaction("pulse_api", uuid.uuid4()) as stranger:
        unforced = [row[0] for row in stranger.execute(UNFORCED, [list(RLS_TABLES)])]
        leaks = stranger.execute(
            "SELECT count(*) FROM pdm_datasets WHERE dataset_id = %s", [dataset.dataset_id]
        ).fetchone()
        catalog = stranger.execute(
            "SELECT count(*) FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s",
            [tenant.namespace],
        ).fetchone()
    problems = [f"row-level security is not forced on {name}" for name in unforced]
    if leaks != (0,) or catalog != (0,):
        problems.append("another tenant's session sees this dataset")
    return problems


def schema_conformance(subject: Subject) -> Finding:
    """The table has the columns of the published schema, and a sample of rows validates again.

    Each row is validated by the version of the schema that it names.
    """
    finding = Finding()
    actual = subject.table.schema()
    wanted, there = _types(table_schema(subject.dataset.columns)), _types(actual)
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
    schema = columns.arrow_schema(subject.table.schema().model_dump_json())
    rows: list[dict[str, Any]] = []
    for path in subject.files:
        try:
            with object_store.file_system().open_input_file(object_store.key(path)) as content:
                for batch in pq.ParquetFile(content).iter_batches(SAMPLE_ROWS):
                    rows.extend(recast.fitted(batch, schema).to_pylist())
                    if len(rows) >= SAMPLE_ROWS:
                        return rows[:SAMPLE_ROWS]
        except pa.ArrowInvalid as error:
            raise Terminal(f"a file of the table is damaged: {error}", file=path) from error
    return rows


def _invalid(dataset: Dataset, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    problems = []
    for row in rows:
        place = f"partition {row['_kafka_partition']}, offset {row['_offset']}"
        document = dataset.documents.get(row["schema_version"])
        if document is None:
            problems.append(f"{place}: the dataset never followed version {row['schema_version']}")
        elif found := violation(document, event_data(dataset, row, document)):
            problems.append(f"{place}: {found[1]}"[:300])
    return problems


def event_data(dataset: Dataset, row: Mapping[str, Any], document: str) -> dict[str, Any]:
    """The `data` of an event, from its row. A null stands for absent, but where it is required.

    Args:
        document: the schema version that the row was validated by.
    """
    required, types = _declared(document)
    data: dict[str, Any] = orjson.loads(row["_extra"]) if row["_extra"] else {}
    for column in dataset.columns:
        value = row[column.name]
        if value is None:
            if column.field in required:
                data[column.field] = None
        elif column.type.kind in (Kind.TIMESTAMP, Kind.DATE):
            data[column.field] = value.isoformat()
        elif column.type.kind is Kind.JSON:
            data[column.field] = orjson.loads(value)
        else:
            data[column.field] = _as_sent(_without_nulls(value), types.get(column.field, column.type))
    return data


@lru_cache(maxsize=1024)
def _declared(document: str) -> tuple[frozenset[str], Mapping[str, FieldType]]:
    """The required properties of a schema version, and the types of its columns by property."""
    schema = orjson.loads(document)
    types = {column.field: column.type for column in declared_columns(schema)}
    return frozenset(schema.get("required", ())), types


def _as_sent(value: Any, kind: FieldType) -> Any:
    """The integers of a column that has become one of doubles since, as integers."""
    if kind.kind is Kind.LONG and isinstance(value, float):
        return int(value)
    if kind.kind is Kind.STRUCT and isinstance(value, dict):
        members = dict(kind.fields)
        return {
            name: _as_sent(item, members[name]) if name in members else item for name, item in value.items()
        }
    if kind.kind is Kind.LIST and isinstance(value, list) and kind.item is not None:
        return [_as_sent(item, kind.item) for item in value]
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


CHECKS = {"tenant_isolation": tenant_isolation, "schema_conformance": schema_conformance}


def run(name: str, tenant: Tenant, slug: str, batch_id: str | None = None) -> Finding:
    """Run one check on one dataset; a table that cannot be read is a finding, not an error."""
    try:
        return CHECKS[name](subject(tenant, slug, batch_id))
    except Terminal as error:
        return Finding(problems=[str(error)])
    except (FileNotFoundError, ValidationError, duckdb.ProgrammingError) as error:
        return Finding(problems=[f"the table cannot be read: {error}"])
