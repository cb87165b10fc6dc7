"""Topics that are lost, made again or limited, and datasets that follow another version without a move."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S
from pulse_pipelines import registry
from pulse_pipelines.ingest import data_loss
from pulse_resources import kafka
from support.ingest import Owner


def delete_topic(owner: Owner) -> None:
    for future in kafka.admin().delete_topics([owner.tenant.topic]).values():
        future.result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while owner.tenant.topic in kafka.partition_counts():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def recreate(owner: Owner) -> None:
    delete_topic(owner)
    kafka.create_topics([owner.tenant.topic])
    kafka.shared_producer.cache_clear()  # it knows the topic that is gone


@contextmanager
def limited(topic: str, limit: int) -> Iterator[None]:
    """Messages of the topic may have so many bytes while the block runs."""
    _set_limit(topic, limit)
    try:
        yield
    finally:
        _set_limit(topic, kafka.MAX_MESSAGE_BYTES)


def _set_limit(topic: str, limit: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for future in kafka.admin().incremental_alter_configs([change]).values():
        future.result(PATIENCE_S)


def accept(owner: Owner) -> None:
    """What an operator does: look, and say the word."""
    data_loss.accept(owner.tenant, data_loss.find_losses(owner.tenant))


def follow(owner: Owner, schema: dict[str, Any], slug: str = "orders") -> int:
    """Move a dataset to a new version of its schema whose columns are the same."""
    published = registry.publish_schema(owner.tenant, slug, orjson.dumps(schema).decode())
    dataset = registry.find_dataset(owner.tenant, slug)
    with superuser() as connection:
        connection.execute(
            "INSERT INTO dataset_versions (tenant_id, dataset_id, version, schema_uri)"
            " VALUES (%s, %s, %s, %s)",
            [owner.tenant.tenant_id, dataset.dataset_id, published.version, published.schema_uri],
        )
        connection.execute(
            "UPDATE pdm_datasets SET schema_uri = %s WHERE dataset_id = %s",
            [published.schema_uri, dataset.dataset_id],
        )
    return published.version
