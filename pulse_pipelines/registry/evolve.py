"""Move a dataset to a newer version of its schema: its row and its table change in one transaction.

What takes long happens before it: comparing, writing the data files that have a replaced column again, and
staging the table's next metadata. Then one transaction locks the row, swaps the table's pointer and updates
the row. Whoever settles in between wins the swap; only the files that it added are written, then.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain.columns import columns
from pulse_pipelines.domain.compatibility import incompatibilities
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schema import SchemaUri, check_document
from pulse_pipelines.domain.table_columns import fitted
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry.datasets import INSERT_VERSION, CurrentTable, current_table, find_dataset
from pulse_pipelines.registry.schemas import PublishedSchema, find_schema
from pulse_pipelines.tables import file_metrics, leases, rewrite_file
from pulse_pipelines.tables.commit import Next, SwapLost, Work, commit
from pulse_pipelines.tables.iceberg_schema import Evolved, evolve
from pulse_resources import iceberg, postgres, readable
from pulse_resources.errors import Conflict, Gone, Incompatible, NotFound, Terminal, Transient
from pulse_resources.faults import fail_point

LOCK = """
SELECT schema_uri, table_schema FROM pdm_datasets WHERE dataset_id = %s FOR UPDATE
"""
MOVE = "UPDATE pdm_datasets SET schema_uri = %s, table_schema = %s WHERE dataset_id = %s"


@dataclass(frozen=True)
class _Step(Work):
    """A dataset on the way to a newer version of its schema; no table when that changes nothing in it."""

    dataset: Dataset
    """As it was."""
    schema: PublishedSchema
    table_schema: str


_Rewritten = dict[tuple[str, str], DataFile | None]
"""Data files that are written again already, by the table schema they follow and the path of what they
replace; None where there was no need to."""


def move_dataset(tenant: Tenant, slug: str, schema_uri: str) -> Dataset:
    """Move a dataset to a newer, compatible version of its schema; nothing to do when it follows it.

    Events may name the version that they follow, the earlier ones of the dataset included.

    Raises:
        UserError: `schema_uri` is not a schema address.
        NotFound: the tenant has no such dataset, or has not published this schema.
        Conflict: it is another schema, or an earlier version.
        Incompatible: events or rows of the version that it follows would not fit; it says which and why.
        Terminal: the table, or a file of it, is gone.
        Transient: the object store failed, or other writers kept committing first; nothing was changed.
    """
    dataset_id = find_dataset(tenant, slug).dataset_id
    with leases.moving(dataset_id):
        return _move(tenant, slug, dataset_id, schema_uri)


def _move(tenant: Tenant, slug: str, dataset_id: UUID, schema_uri: str) -> Dataset:
    rewritten: _Rewritten = {}

    def look() -> CurrentTable:
        return current_table(tenant, slug)

    def stage(lost: SwapLost | None) -> _Step | None:
        return readable.as_it_is(
            partial(_step, tenant, dataset_id, schema_uri, rewritten),
            look(),
            look,
            lambda seen: seen.metadata_location,
        )

    where = {"tenant": tenant.slug, "dataset": slug}
    try:
        commit(
            tenant,
            stage,
            lambda step: find_dataset(tenant, slug).schema_uri == schema_uri,
            before=partial(_compare, tenant),
            write=partial(_write, tenant),
            role="pulse_api",
            point="move",
        )
    except (Gone, FileNotFoundError) as error:
        raise Gone(f"a file of the table is gone: {error}", **where) from error
    except pa.ArrowInvalid as error:
        raise Terminal(f"a file of the table is damaged: {error}", **where) from error
    except OSError as error:
        raise Transient(
            f"the object store did not take the table: {error}", fix="Nothing was changed: try again", **where
        ) from error
    return find_dataset(tenant, slug)


def _step(
    tenant: Tenant, dataset_id: UUID, schema_uri: str, rewritten: _Rewritten, current: CurrentTable
) -> "_Step | None":
    """The move from where the dataset is; None when it follows the version already."""
    dataset = current.dataset
    if dataset.dataset_id != dataset_id:
        raise NotFound(
            "the dataset was deleted, and another one has its slug",
            fix="Do it again if that one is to move",
            tenant=tenant.slug,
            dataset=dataset.slug,
        )
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        schema = find_schema(connection, tenant, schema_uri)
    if dataset.schema_uri == schema.schema_uri:
        return None
    _check(tenant, dataset, schema)
    return _stage(tenant, current, schema, rewritten)


def _check(tenant: Tenant, dataset: Dataset, schema: PublishedSchema) -> None:
    follows, wanted = SchemaUri.parse(dataset.schema_uri), SchemaUri.parse(schema.schema_uri)
    where = {"tenant": tenant.slug, "dataset": dataset.slug}
    if wanted.name != follows.name:
        raise Conflict(f"the dataset follows the schema {follows.name!r}, not {wanted.name!r}", **where)
    if wanted.version < follows.version:
        raise Conflict(f"the dataset follows version {follows.version} already", **where)
    found = incompatibilities(check_document(dataset.document), check_document(schema.document))
    if found:
        first, more = found[0], len(found) - 1
        raise Incompatible(
            f"version {wanted.version} is not compatible with version {follows.version}: at "
            f"{first.pointer or 'the top'}, {first.change}: {first.reason}"
            + (f", and {more} more" if more else ""),
            fix="Publish a version that is, or create another dataset",
            incompatibilities=found,
            **where,
        )


def _stage(tenant: Tenant, current: CurrentTable, schema: PublishedSchema, rewritten: _Rewritten) -> _Step:
    dataset, name = current.dataset, (tenant.namespace, current.dataset.slug)
    table = iceberg.load_table(name, current.metadata_location)
    if table.properties.get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
        raise Terminal("the table is not this dataset's", tenant=tenant.slug, dataset=dataset.slug)
    document = check_document(schema.document)
    declared = fitted(columns(document), document, dataset.table_schema, grow=True)
    evolved = evolve(table.schema(), declared, table.metadata.last_column_id)
    if evolved.schema.fields == table.schema().fields:
        return _Step([], dataset, schema, dataset.table_schema)
    pairs = _rewrite(table, evolved, rewritten) if evolved.replaced else []
    fail_point("move.rewritten")
    summary = {"pulse.schema-uri": schema.schema_uri}
    if evolved.replaced:
        summary["pulse.replaced-columns"] = ",".join(sorted(evolved.replaced))
    location, written = iceberg.stage_schema(table, evolved.schema, pairs, summary)
    following = Next(name, current.metadata_location, location)
    return _Step([following], dataset, schema, written.model_dump_json())


def _rewrite(table: Table, evolved: Evolved, rewritten: _Rewritten) -> list[tuple[DataFile, DataFile]]:
    """The current data files that have a replaced column, each with the one that takes its place."""
    table_schema, pairs = evolved.schema.model_dump_json(), []
    for task in table.scan().plan_files():
        before = task.file
        if task.delete_files:
            raise Terminal("the table has delete files: compact it first", table=".".join(table.name()))
        key = (table_schema, before.file_path)
        if key not in rewritten:
            rewritten[key] = _again(before, evolved, table_schema)
        if (after := rewritten[key]) is not None:
            pairs.append((before, after))
    return pairs


def _again(before: DataFile, evolved: Evolved, table_schema: str) -> DataFile | None:
    if not rewrite_file.stale(rewrite_file.field_ids(before.file_path), evolved.schema):
        return None
    day = file_metrics.EPOCH + timedelta(days=before.partition[0])
    again = rewrite_file.rewrite(before.file_path, table_schema)
    return file_metrics.data_file(again.path, day, again.rows, again.bytes, again.metrics)


def _compare(tenant: Tenant, connection: postgres.Connection, step: _Step) -> None:
    dataset = step.dataset
    row = connection.execute(LOCK, [dataset.dataset_id]).fetchone()
    if row is None:
        raise NotFound("no such dataset", tenant=tenant.slug, dataset=dataset.slug)
    if row != (dataset.schema_uri, dataset.table_schema):
        raise SwapLost


def _write(tenant: Tenant, connection: postgres.Connection, step: _Step) -> None:
    dataset_id, schema = step.dataset.dataset_id, step.schema
    connection.execute(MOVE, [schema.schema_uri, step.table_schema, dataset_id])
    connection.execute(INSERT_VERSION, [tenant.tenant_id, dataset_id, schema.version, schema.schema_uri])
