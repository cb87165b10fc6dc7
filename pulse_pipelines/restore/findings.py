"""Findings after a restore: differences between Postgres, the object store and Kafka, and what to do.

Nothing is changed. What is only in Kafka needs no repair: ingestion reads it again by itself, from the
positions that Postgres has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import plan
from pulse_pipelines.registry.datasets import list_datasets
from pulse_pipelines.restore import lost_raw, table_files, tenant_tables
from pulse_pipelines.restore.lost_raw import LostBatch
from pulse_pipelines.restore.table_files import TableFiles
from pulse_pipelines.tables import store_mark
from pulse_resources import kafka, object_store, postgres
from pulse_resources.errors import Terminal, some_of
from pulse_resources.settings import load_settings

FORMER = "SELECT slug, dataset_id FROM deleted_datasets WHERE tenant_id = %s"
UNLANDED = """
SELECT dataset, count(*) FROM dead_letters
WHERE tenant_id = %s AND resolution IS NULL AND reason = 'landing_failed' GROUP BY dataset
"""


class Kind(StrEnum):
    """The kind of a difference."""

    RESTORED = "restored"
    """Postgres and the object store are of different times."""
    TABLE = "table"
    """Files of a dataset's table are gone."""
    RAW = "raw"
    """Objects of the raw zone are gone, or were deleted and are there again."""
    TOPIC = "topic"
    """A topic does not hold what was not ingested yet."""
    TENANT_TABLE = "tenant_table"
    """A table of a tenant's own has commits that the catalog does not know, or its metadata is gone."""
    UNKNOWN = "unknown"
    """Kafka or the object store holds data of a tenant, dataset or table that Postgres does not know."""


@dataclass(frozen=True)
class Finding:
    kind: Kind
    tenant: str | None
    subject: str | None
    detail: str
    fix: str


def find_restored() -> Iterator[Finding]:
    """The finding that Postgres or the object store was restored. Raises as `store_mark.compare`."""
    if (restored := store_mark.compare()) is not None:
        fix = "Once everything below is repaired or given up: `pulse restore accept`"
        yield Finding(Kind.RESTORED, None, None, restored.sentence, fix)


def find_in(tenant: Tenant) -> Iterator[Finding]:
    """The differences in one tenant's data.

    Raises:
        OSError: the object store failed.
        Transient, KafkaException: the broker does not answer.
        psycopg.OperationalError: Postgres failed.
    """
    for alarm in plan.ingest_status([tenant.tenant_id]).alarms:
        subject = f"partition {alarm.partition} of {tenant.topic}"
        yield Finding(Kind.TOPIC, tenant.slug, subject, alarm.problem, alarm.fix)
    datasets = list_datasets(tenant)
    objects = lost_raw.list_objects(tenant)
    lost = lost_raw.find_lost(tenant, objects)
    for dataset in datasets:
        yield from _of_table(tenant, dataset, lost)
    for batch in lost:
        yield _of_raw(tenant, batch)
    if returned := lost_raw.find_returned(tenant, objects):
        detail = f"objects that retention or an erasure had deleted are there again: {len(returned):,}"
        fix = f"`pulse restore repair {tenant.slug}` deletes them"
        yield Finding(Kind.RAW, tenant.slug, None, detail, fix)
    for lost_table in tenant_tables.find_lost_metadata(tenant):
        yield _of_tenant_table(tenant, lost_table)
    for folder in _unknown_tables(tenant, datasets):
        yield _of_folder(tenant, folder, "It was created after the backup: create it again")
    if store_mark.compare() is not None:
        yield from _since_backup(tenant, datasets)


def _since_backup(tenant: Tenant, datasets: Sequence[Dataset]) -> Iterator[Finding]:
    """What is a difference after a restore alone: otherwise failed commits and drops leave the same."""
    yield from _unlanded(tenant, datasets)
    for behind in tenant_tables.find_behind(tenant):
        yield Finding(
            Kind.TENANT_TABLE,
            tenant.slug,
            behind.table.shown,
            f"commits in its folder that the catalog does not know: {behind.commits:,}",
            f"`pulse restore repair {tenant.slug}` makes the newest of them the current one",
        )
    for folder in tenant_tables.unknown_folders(tenant):
        why = "It was dropped, which leaves its files, or created after the backup: then create it again"
        yield _of_folder(tenant, folder, why)


def _of_folder(tenant: Tenant, folder: str, why: str) -> Finding:
    return Finding(
        Kind.UNKNOWN,
        tenant.slug,
        None,
        f"Postgres has no table in the folder {folder}",
        f"{why}. Its files stay until they are deleted by hand",
    )


def _of_tenant_table(tenant: Tenant, lost: tenant_tables.LostMetadata) -> Finding:
    register = f", or `register` it with `overwrite` by {lost.newest}" if lost.newest else ""
    return Finding(
        Kind.TENANT_TABLE,
        tenant.slug,
        lost.table.shown,
        f"its metadata, or its list of manifests, is gone: {lost.table.at}",
        f"Put the files of its folder back from a backup{register}",
    )


def _unlanded(tenant: Tenant, datasets: Sequence[Dataset]) -> Iterator[Finding]:
    """Events that became dead letters because their dataset's table could not be read after the restore."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        rows: list[tuple[str, int]] = connection.execute(UNLANDED, [tenant.tenant_id]).fetchall()
    counts = dict(rows)
    for slug in (dataset.slug for dataset in datasets if dataset.slug in counts):
        yield Finding(
            Kind.TABLE,
            tenant.slug,
            slug,
            f"events that could not land are dead letters: {counts[slug]:,}",
            f"Once the table is repaired: `pulse dlq replay {tenant.slug} --dataset {slug} "
            "--reason landing_failed`",
        )


def _of_table(tenant: Tenant, dataset: Dataset, lost: Sequence[LostBatch]) -> Iterator[Finding]:
    try:
        files = table_files.compare(tenant, dataset)
    except Terminal as error:
        fix = error.fix or "`pulse reconcile` tells what is left"
        yield Finding(Kind.TABLE, tenant.slug, dataset.slug, error.message, fix)
        return
    if files.is_whole:
        return
    yield Finding(Kind.TABLE, tenant.slug, dataset.slug, _sentence(files), _fix(files, lost))


def _sentence(files: TableFiles) -> str:
    base = files.base
    if base is None:
        return f"no metadata of the table can be used; {_days(files)}"
    parts = []
    if not files.is_current:
        parts.append(f"its metadata is gone, the newest that is there is {base.location.rpartition('/')[2]}")
    if base.missing:
        parts.append(f"data files that are gone: {len(base.missing):,}")
    if files.unreadable:
        parts.append(f"earlier snapshots with files that are gone: {len(files.unreadable):,}")
    if files.days:
        parts.append(_days(files))
    return "; ".join(parts)


def _days(files: TableFiles) -> str:
    days = [str(day) for day in files.days]
    return f"days to be rebuilt: {len(days):,} ({some_of(days)})" if days else "no day has to be rebuilt"


def _fix(files: TableFiles, lost: Sequence[LostBatch]) -> str:
    tenant, dataset = files.tenant.slug, files.dataset.slug
    if files.dataset.of_entities and files.days:
        return (
            "A log of entities cannot be rebuilt: put its files back from a backup, or delete the dataset, "
            "create it again and send its entities in full"
        )
    beyond = lost_raw.batches_of((batch for batch in lost if not batch.in_kafka), dataset)
    if lacking := [str(day) for day in files.days if day in beyond]:
        is_all = len(lacking) == len(files.days)
        advice = "" if is_all else f"`pulse restore repair {tenant}` rebuilds the others; "
        return (
            f"{advice}{some_of(lacking)} cannot be rebuilt: raw objects are gone, and the topic no longer "
            "holds their events. Put the raw objects back from a backup first"
        )
    return f"`pulse restore repair {tenant}` repairs it" + (", from the raw zone" if files.days else "")


def _of_raw(tenant: Tenant, batch: LostBatch) -> Finding:
    events = sum(part.events for part in batch.parts)
    slugs = some_of(sorted({part.slug for part in batch.parts}))
    where = ", ".join(f"partition {r.partition} from {r.start} to {r.end}" for r in batch.ranges)
    fix = (
        f"`pulse restore repair {tenant.slug}` writes them again from Kafka"
        if batch.in_kafka
        else "The topic no longer holds them: put the objects back from a backup. Rows of them that are in "
        "a table stay, but cannot be rebuilt"
    )
    detail = f"{events:,} events of batch {batch.batch_id} ({where}) are not in the raw zone"
    return Finding(Kind.RAW, tenant.slug, slugs, detail, fix)


def _unknown_tables(tenant: Tenant, datasets: Sequence[Dataset]) -> Iterator[str]:
    """Folders with data of datasets that Postgres neither has nor had.

    One without data is what a creation leaves that was refused.
    """
    bucket = load_settings().object_store.bucket
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        former: list[tuple[str, UUID]] = connection.execute(FORMER, [tenant.tenant_id]).fetchall()
    locations = {
        tenant.table_location(bucket, slug, dataset_id)
        for slug, dataset_id in (*former, *((d.slug, d.dataset_id) for d in datasets))
    }
    for folder in object_store.folders(f"s3://{bucket}/iceberg/{tenant.namespace}"):
        name = folder.rpartition("/")[2]
        if name.startswith("_") or "__" in name:
            continue  # tables of the tenant's own, and rollups
        for path in object_store.folders(folder):
            if path not in locations and next(object_store.listed(f"{path}/data"), None) is not None:
                yield path


def find_unknown_tenants(tenants: Sequence[Tenant]) -> Iterator[Finding]:
    """Topics and folders of tenants that Postgres does not know.

    Args:
        tenants: all that Postgres knows.

    Raises:
        OSError, KafkaException: the object store or the broker failed.
    """
    tenant_ids = {tenant.tenant_id for tenant in tenants}
    bucket = load_settings().object_store.bucket
    folders = object_store.folders(f"s3://{bucket}/iceberg")
    ids = {_id_of(folder.rpartition("/")[2].removeprefix("pulse_")): f"folder {folder}" for folder in folders}
    for topic in kafka.partition_counts():
        parts = topic.split(".")
        if len(parts) == 3 and parts[0] == "pulse" and parts[2] == "events":
            ids.setdefault(_id_of(parts[1]), f"topic {topic}")
    for tenant_id in sorted(ids.keys() - tenant_ids - {None}, key=str):
        yield Finding(
            Kind.UNKNOWN,
            None,
            None,
            f"Postgres has no tenant {tenant_id}, which has the {ids[tenant_id]}",
            "It was created after the backup: create it again, and have its senders send again",
        )


def _id_of(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
