"""Copies that an erasure cannot reach, in Kafka, claims and other tables, and until when they exist."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.own import tables as own_tables
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.pipes.transforms.queries import readers
from pulse_resources import kafka, postgres
from pulse_resources.settings import load_settings

DELETED = """
SELECT dataset_id, deleted_at, metadata_location FROM deleted_datasets
WHERE tenant_id = %s AND slug = %s ORDER BY deleted_at
"""

DELETED_SLUGS = "SELECT DISTINCT slug FROM deleted_datasets WHERE tenant_id = %s ORDER BY slug"


class Deleted(NamedTuple):
    """A deleted dataset of the slug."""

    dataset_id: UUID
    deleted_at: datetime
    metadata_location: str | None


def deleted(tenant: Tenant, slug: str) -> list[Deleted]:
    """Deleted datasets of the tenant that had a slug, in order of deletion."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return postgres.select(connection, Deleted, DELETED, [tenant.tenant_id, slug])


def deleted_slugs(tenant: Tenant) -> list[str]:
    """The slugs that deleted datasets of the tenant had."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return [slug for (slug,) in connection.execute(DELETED_SLUGS, [tenant.tenant_id])]


def remains(tenant: Tenant, subject: Subject, steps: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Places that may still hold the person's events: `where`, `until` (ISO 8601, None: no end), `why`.

    Args:
        steps: the erasure's results.

    Raises:
        KafkaException: the broker does not answer.
        OSError: the object store failed.
    """
    deleted_datasets = deleted(tenant, subject.dataset.slug)
    return [
        *_topics(tenant),
        _claims(subject),
        *_transforms(tenant, subject),
        *(_deleted(dataset) for dataset in deleted_datasets),
        *own_tables.remains(tenant, subject, steps),
    ]


def _topics(tenant: Tenant) -> Iterable[dict[str, Any]]:
    now, topics = datetime.now(UTC), [tenant.topic, tenant.dead_letter_topic]
    by_topic = kafka.topic_settings(topics)
    for topic in topics:
        if (settings := by_topic.get(topic)) is None:
            until, why = now.isoformat(timespec="seconds"), "the broker has no such topic now"
            yield {"where": f"Kafka topic {topic}", "until": until, "why": why}
            continue
        retention, segment = int(settings["retention.ms"]), int(settings["segment.ms"])
        # Kafka deletes a segment when all of it is old enough, and appends to it for as long as it is open.
        latest = None if retention < 0 else now + timedelta(milliseconds=retention + segment)
        yield {
            "where": f"Kafka topic {topic}",
            "until": latest and latest.isoformat(timespec="seconds"),
            "why": f"retention.ms={retention}, segment.ms={segment}",
        }


def _claims(subject: Subject) -> dict[str, Any]:
    days, dataset_id = load_settings().upkeep.claim_days, subject.dataset.dataset_id
    with postgres.tenant_transaction("pulse_pipeline", subject.dataset.tenant_id) as connection:
        stays = days < 0 or not claim_runs.expires(connection, dataset_id)
    until = None if stays else datetime.now(UTC) + timedelta(days=days + 1)
    return {
        "where": f"claims of the dataset {dataset_id}: digests of event ids, and nothing else",
        "until": until and until.isoformat(timespec="seconds"),
        "why": f"an event that is sent again must not land again; upkeep.claim_days={days}"
        + (", and a pipe may send all of them again" if stays and days >= 0 else ""),
    }


def _transforms(tenant: Tenant, subject: Subject) -> Iterable[dict[str, Any]]:
    """Datasets that a transform makes of the subject's."""
    for pipe in readers(tenant, subject.dataset.slug):
        yield {
            "where": f"the dataset {pipe.dataset}, which the transform {pipe.name} makes of this one",
            "until": None,
            "why": "its latest state follows with the pipe's next run, its earlier versions stay: run the "
            "pipe, then erase there, too",
        }


def _deleted(dataset: Deleted) -> dict[str, Any]:
    at = dataset.deleted_at.isoformat(timespec="seconds")
    return {
        "where": f"table of the dataset {dataset.dataset_id}, deleted {at}, and its rollups",
        "until": None,
        "why": f"an earlier dataset of this slug: its files stay, at {dataset.metadata_location}",
    }
