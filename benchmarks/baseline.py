"""The peer: a plain consumer that appends with pyiceberg, and neither validates nor dedups.

It knows each event's type in advance, keeps no raw zone, makes no claims, and commits its offsets after the
append, so a crash in between doubles a batch. One thread; Pulse has two cores, and uses them for more.
"""

import time
import uuid

import orjson
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DoubleType, LongType, NestedField, StringType, TimestamptzType

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.settings import load_settings

APPEND_ROWS = 100_000
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


def run(tenants: list[Tenant], ends: dict[tuple[str, int], int]) -> float:
    """Consume every topic to its end into a table each; returns events per second."""
    catalog = _catalog()
    consumer = Consumer(
        {
            "bootstrap.servers": load_settings().kafka.bootstrap_servers,
            "group.id": f"baseline-{uuid.uuid4()}",
            "enable.auto.commit": False,
        }
    )
    began, total = time.monotonic(), 0
    for tenant in tenants:
        table = catalog.create_table(
            f"bench.{tenant.namespace}",
            Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(FIELDS.items(), 1))),
        )
        spans = {p: end for (topic, p), end in ends.items() if topic == tenant.topic}
        consumer.assign([TopicPartition(tenant.topic, partition, 0) for partition in spans])
        left = sum(spans.values())
        while left:
            messages = consumer.consume(min(APPEND_ROWS, left), 10.0)
            assert messages, "the broker sent nothing"
            table.append(_arrow([orjson.loads(m.value() or b"") for m in messages], table.schema()))
            consumer.commit(asynchronous=False)
            left -= len(messages)
            total += len(messages)
    consumer.close()
    return total / (time.monotonic() - began)


def _catalog() -> SqlCatalog:
    settings = load_settings()
    store = settings.object_store
    url = settings.postgres.url("pulse_owner").replace("postgresql://", "postgresql+psycopg://")
    catalog = SqlCatalog(
        "bench",
        **{
            "uri": f"{url}?options=-csearch_path%3Dbench",
            "warehouse": f"s3://{store.bucket}/bench",
            "s3.endpoint": store.endpoint,
            "s3.access-key-id": store.access_key,
            "s3.secret-access-key": store.secret_key.get_secret_value(),
            "s3.region": store.region,
        },
    )
    catalog.create_namespace_if_not_exists("bench")
    return catalog


def _arrow(events: list[dict[str, object]], schema: Schema) -> pa.Table:
    datas = [event["data"] for event in events]
    columns = {
        name: [
            event[name] if name in event else data.get(name)
            for event, data in zip(events, datas, strict=True)
        ]
        for name in FIELDS
    }
    wanted = schema.as_arrow()
    arrays = []
    for name, values in columns.items():
        kind = wanted.field(name).type
        text = pa.types.is_timestamp(kind)
        arrays.append(pa.array(values, pa.string()).cast(kind) if text else pa.array(values, kind))
    return pa.Table.from_arrays(arrays, schema=wanted)
