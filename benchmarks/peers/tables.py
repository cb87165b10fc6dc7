"""Iceberg tables of the peers: one per tenant in a namespace per peer, partitioned by day like Pulse's."""

from functools import cache

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestamptzType

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.iceberg import CATALOG
from pulse_resources.settings import load_settings

POSTGRES_SCHEMA = "bench"
ROLE = "pulse_owner"
FIELDS = {
    "event_id": StringType(),
    "timestamp": TimestamptzType(),
    "country": StringType(),
    "amount": DoubleType(),
    "active": BooleanType(),
    "signup_at": TimestamptzType(),
    "plan": StringType(),
    "seats": LongType(),
}
SCHEMA = Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(FIELDS.items(), 1)))
ARROW = SCHEMA.as_arrow()
PARTITIONED_BY_DAY = PartitionSpec(
    PartitionField(
        source_id=SCHEMA.find_field("timestamp").field_id,
        field_id=1000,
        transform=DayTransform(),
        name="timestamp_day",
    )
)
# For Spark: tasks write their rows without a shuffle or sort by day.
PROPERTIES = {"write.distribution-mode": "none", "write.spark.fanout.enabled": "true"}


def warehouse() -> str:
    return f"s3://{load_settings().object_store.bucket}/bench"


@cache
def catalog() -> SqlCatalog:
    """A catalog beside Pulse's, in its own Postgres schema."""
    settings = load_settings()
    store, url = settings.object_store, settings.postgres.url(ROLE)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {POSTGRES_SCHEMA}")
    return SqlCatalog(
        CATALOG,
        **{
            "uri": f"{url.replace('postgresql://', 'postgresql+psycopg://')}"
            f"&options=-csearch_path%3D{POSTGRES_SCHEMA}",
            "warehouse": warehouse(),
            "s3.endpoint": store.endpoint,
            "s3.access-key-id": store.access_key,
            "s3.secret-access-key": store.secret_key.get_secret_value(),
            "s3.region": store.region,
        },
    )


def name(peer: str, tenant: Tenant) -> tuple[str, str]:
    return peer, tenant.namespace


def make(peer: str, tenants: list[Tenant]) -> None:
    """Make an empty table for each tenant."""
    catalog().create_namespace(peer)
    for tenant in tenants:
        catalog().create_table(
            name(peer, tenant), SCHEMA, partition_spec=PARTITIONED_BY_DAY, properties=PROPERTIES
        )


def prove(peer: str, tenants: list[Tenant], events: int) -> None:
    """Read the ids of every table and compare their number with the events sent.

    Raises:
        AssertionError: the number of rows or of distinct ids differs from the events sent.
    """
    rows = distinct = 0
    for tenant in tenants:
        scan = catalog().load_table(name(peer, tenant)).scan(selected_fields=("event_id",))
        ids = scan.to_arrow().column("event_id")
        rows += len(ids)
        distinct += pc.count_distinct(ids, mode="only_valid").as_py()
    assert rows == distinct == events, f"{peer}: {events} sent, {rows} rows, {distinct} distinct ids"


def count(peer: str, tenant: Tenant) -> int:
    """Row count of a tenant's table, from its snapshot."""
    snapshot = catalog().load_table(name(peer, tenant)).current_snapshot()
    return int((snapshot and snapshot.summary and snapshot.summary["total-records"]) or 0)


def typed(events: list[dict[str, object]]) -> pa.Table:
    """Convert decoded events to typed columns; the types are known in advance."""
    datas = [event["data"] for event in events]
    arrays = []
    for field in ARROW:
        values = [
            event[field.name] if field.name in event else data.get(field.name)
            for event, data in zip(events, datas, strict=True)
        ]
        kind = pa.string() if pa.types.is_timestamp(field.type) else field.type
        arrays.append(pa.array(values, kind).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=ARROW)
