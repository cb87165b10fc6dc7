"""The live table of a dataset: its current metadata, location and data files."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.iceberg_schema import PARTITIONED_BY_DAY, table_properties
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import readable
from pulse_resources.settings import load_settings

_Made = TypeVar("_Made")


def current(tenant: Tenant, dataset: Dataset) -> Table:
    """Load the dataset's current table.

    Raises:
        Terminal: it is gone, or belongs to another dataset of the same slug.
    """
    return of_current(lambda table: table, tenant, dataset)


def of_current(use: Callable[[Table], _Made], tenant: Tenant, dataset: Dataset) -> _Made:
    """Apply `use` to the dataset's current table, for readers without its lease.

    Called again on the newer table if the one it read is gone meanwhile.

    Raises:
        Terminal: the table is gone, or belongs to another dataset of the same slug.
    """
    name = (tenant.namespace, dataset.slug)
    read_location = partial(current_location, tenant.tenant_id, name)

    def read(location: str) -> _Made:
        with readable.damage_explained(location):
            table = iceberg.load_table(name, location)
        if table.properties.get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
            raise Terminal("the table is not this dataset's", tenant=tenant.slug, dataset=dataset.slug)
        return use(table)

    return readable.as_it_is(read, read_location(), read_location, str)


def write_first(tenant: Tenant, slug: str, dataset_id: UUID, schema: Schema, kind: str) -> tuple[str, Schema]:
    """Write metadata of a dataset's table without rows, which no pointer names yet.

    Args:
        kind: of the dataset.

    Returns:
        Its location, and the schema with the field ids assigned by the table.

    Raises:
        OSError: the object store failed.
    """
    return iceberg.write_new_table(
        tenant.table_location(load_settings().object_store.bucket, slug, dataset_id),
        schema,
        PARTITIONED_BY_DAY,
        table_properties(kind) | {"pulse.tenant": tenant.slug, iceberg.DATASET_PROPERTY: str(dataset_id)},
    )


def live_files(table: Table) -> dict[str, DataFile]:
    """The data files of the current snapshot, by path."""
    snapshot = table.current_snapshot()
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def of_day(day: date) -> BooleanExpression:
    """The filter for rows of a day, by which manifests rule files out."""
    begin = datetime.combine(day, time.min, UTC)
    within: BooleanExpression = GreaterThanOrEqual("timestamp", begin.isoformat())  # type: ignore[call-arg,arg-type]
    if day < date.max:
        end = LessThan("timestamp", (begin + timedelta(days=1)).isoformat())  # type: ignore[call-arg,arg-type]
        within = And(within, end)
    return within


def current_location(tenant_id: UUID, table: iceberg.TableName) -> str:
    """Location of the table's current metadata. Raises Terminal: the tenant has no such table."""
    with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
        return iceberg.current_location(connection, table)
