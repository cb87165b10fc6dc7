"""Plain consumer that appends with pyiceberg, without validation or deduplication.

It knows each event's type in advance, keeps no raw zone, makes no claims, and commits its offsets after the
append, so that a crash in between duplicates a batch. One process.
"""

import time
import uuid

import orjson
from confluent_kafka import Consumer, TopicPartition

from benchmarks.peers import tables
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import kafka
from pulse_resources.settings import load_settings


def run(peer: str, tenants: list[Tenant], events: int, *, append_rows: int) -> float:
    """Consume every topic to its end into a table each; returns events per second.

    Raises:
        AssertionError: not every event is in a table, exactly once.
    """
    tables.make(peer, tenants)
    partitions = [(t.topic, p) for t in tenants for p in range(load_settings().kafka.partitions_per_topic)]
    ends = {where: end for where, end in kafka.offsets(partitions, "latest").items() if isinstance(end, int)}
    began = time.monotonic()
    _consume(peer, tenants, ends, append_rows)
    seconds = time.monotonic() - began
    tables.prove(peer, tenants, events)
    return events / seconds


def _consume(peer: str, tenants: list[Tenant], ends: dict[tuple[str, int], int], append_rows: int) -> None:
    consumer = Consumer(
        load_settings().kafka.client() | {"group.id": f"peer-{uuid.uuid4()}", "enable.auto.commit": False}
    )
    for tenant in tenants:
        table = tables.catalog().load_table(tables.name(peer, tenant))
        spans = {p: end for (topic, p), end in ends.items() if topic == tenant.topic}
        consumer.assign([TopicPartition(tenant.topic, partition, 0) for partition in spans])
        remaining = sum(spans.values())
        while remaining:
            messages = consumer.consume(min(append_rows, remaining), 10.0)
            assert messages, "the broker sent nothing"
            table.append(tables.typed([orjson.loads(m.value() or b"") for m in messages]))
            consumer.commit(asynchronous=False)
            remaining -= len(messages)
    consumer.close()
