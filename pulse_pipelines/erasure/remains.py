"""What an erasure cannot reach, and until when it remains: what Kafka still holds, and tables of the past."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.subject import Subject
from pulse_resources import kafka, postgres

DELETED = "SELECT dataset_id, deleted_at, metadata_location FROM deleted_datasets WHERE slug = %s"


def remains(tenant: Tenant, subject: Subject) -> list[dict[str, Any]]:
    """Places that may hold the person's events still: `where`, `until` (ISO 8601, None: for ever), `why`.

    Raises:
        KafkaException: the broker does not answer.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        deleted = connection.execute(DELETED, [subject.dataset.slug]).fetchall()
    return [*_topics(tenant), *(_deleted(*row) for row in deleted)]


def _topics(tenant: Tenant) -> Iterable[dict[str, Any]]:
    now = datetime.now(UTC)
    for topic, settings in kafka.topic_settings([tenant.topic, tenant.dead_letter_topic]).items():
        retention, segment = int(settings["retention.ms"]), int(settings["segment.ms"])
        # A segment is deleted when all of it is old enough; it may take events for as long as it is open.
        latest = None if retention < 0 else now + timedelta(milliseconds=retention + segment)
        yield {
            "where": f"Kafka topic {topic}",
            "until": latest and latest.isoformat(timespec="seconds"),
            "why": f"retention.ms={retention}, segment.ms={segment}",
        }


def _deleted(dataset_id: object, deleted_at: datetime, location: str | None) -> dict[str, Any]:
    return {
        "where": f"table of the dataset {dataset_id}, deleted {deleted_at.isoformat(timespec='seconds')}",
        "until": None,
        "why": f"an earlier dataset of this slug: its files stay, at {location}",
    }
