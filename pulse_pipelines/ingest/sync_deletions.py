"""Deletions of full syncs: entities missing from a sync are deleted once all its events have settled.

Pulse sends the deletions to the topic as the sync's last part: they settle like other events, and the
transaction that settles them ends the sync. An entity that arrived since the sync began is not deleted,
however late the deletion arrives (see `ingest.versions`), so that sending deletions again is harmless.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaError, KafkaException, Message

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.entities import deletion_by_sync
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.syncs import SyncState, approval_reason
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import heads, sync_progress
from pulse_pipelines.entities.heads import Heads
from pulse_pipelines.entities.index_runs import Counters
from pulse_pipelines.ingest import spans
from pulse_pipelines.tables import dataset_rows, live_table
from pulse_pipelines.tables.iceberg_schema import UPDATED
from pulse_resources import iceberg, kafka, object_store, postgres
from pulse_resources.errors import Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

_log = logging.getLogger("pulse.deletions")
FLUSH_S = 60.0

# A range of the topic without messages settles in no batch: hence the query for ends.
DUE = f"""
SELECT DISTINCT t.tenant_id, t.slug FROM entity_syncs s JOIN pdm_tenants t USING (tenant_id)
WHERE s.state = 'sent' AND {sync_progress.BEYOND.format(ends="s.ends")}
    OR s.state = 'deleting' AND {sync_progress.BEYOND.format(ends="s.swept_to")}
    OR {sync_progress.FORSAKEN.format(seconds="%s")}
ORDER BY t.slug
"""  # noqa: S608 - from constants
OPEN = """
SELECT sync_id, dataset_id, state FROM entity_syncs
WHERE tenant_id = %s AND is_full
    AND (state = 'sent' AND settled_at IS NOT NULL OR state = 'deleting' AND swept_to IS NULL)
ORDER BY sync_id
"""
FACTS = """
SELECT l.deletes_most, s.nameless, s.state FROM entity_syncs s JOIN entity_logs l USING (dataset_id)
WHERE s.sync_id = %s
"""
DECIDE = """
UPDATE entity_syncs SET state = %(state)s, reason = %(reason)s, entities = %(entities)s, absent = %(absent)s,
    ended_at = CASE WHEN %(state)s = 'done' THEN now() END
WHERE sync_id = %(sync)s AND state = %(before)s
"""
AWAITING_APPROVAL = """
SELECT t.slug AS tenant, d.slug AS dataset, s.sync_id, s.reason
FROM entity_syncs s JOIN pdm_tenants t USING (tenant_id) JOIN pdm_datasets d USING (dataset_id)
WHERE s.state = 'held' ORDER BY s.sync_id
"""
ADVANCE_DELETIONS = "UPDATE entity_syncs SET swept_to = %s WHERE sync_id = %s AND state = 'deleting'"


class HeldSync(NamedTuple):
    """A full sync whose deletions an operator has to approve or refuse."""

    tenant: str
    dataset: str
    sync_id: int
    reason: str


@dataclass(frozen=True)
class Absent:
    """Entities of the dataset that are missing from a full sync."""

    numbers: Counters
    """`_updated` of the absent entities' newest versions, ascending."""
    entities: int
    """Number of entities that exist, the absent ones included."""
    sync_ids: int
    """Number of ids in the sync."""
    location: str
    """Location of the table's metadata at that moment."""


def due() -> list[Tenant]:
    """Tenants with syncs that may have to be advanced."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, Tenant, DUE, [load_settings().ingest.sync_seconds])


def syncs_awaiting_approval() -> list[HeldSync]:
    """The full syncs of all tenants that await an operator's decision."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, HeldSync, AWAITING_APPROVAL)


def send(tenants: Iterable[Tenant]) -> Iterator[tuple[Tenant, int | Exception]]:
    """Send the deletions of tenants' full syncs; yields the number per tenant, or the tenant's error."""
    for tenant in tenants:
        outcome: int | Exception
        try:
            outcome = send_of(tenant)
        except Exception as error:  # retried at the sensor's next pass
            _log.warning("tenant %s: %s", tenant.slug, error)
            outcome = error
        yield tenant, outcome


def send_of(tenant: Tenant) -> int:
    """Decide on the tenant's full syncs that have settled, and send the deletions of those that may delete.

    Raises:
        Transient: the broker or the object store does not answer.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        sync_progress.expire(connection, tenant.tenant_id, load_settings().ingest.sync_seconds)
        sync_progress.reached(connection, tenant.tenant_id)
        rows = connection.execute(OPEN, [tenant.tenant_id]).fetchall()
    return sum(_send(tenant, sync_id, dataset_id) for sync_id, dataset_id, _ in rows)


def _send(tenant: Tenant, sync_id: int, dataset_id: UUID) -> int:
    with locks.session(Lock.SYNC, dataset_id) as session:
        if session is None:  # another process holds the dataset's lock
            return 0
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
            dataset = next(dataset_rows.read(connection, "d.dataset_id = %s", [dataset_id]), None)
            facts = connection.execute(FACTS, [sync_id]).fetchone()
            if dataset is None or facts is None:
                return 0
            share, nameless, before = facts
            absent = find_absent(connection, tenant, dataset, sync_id)
        absent = _without_erased(absent, tenant, dataset)
        state, reason = SyncState.DELETING, None
        if before == SyncState.SENT:
            count = len(absent.numbers)
            reason = approval_reason(absent.entities, count, absent.sync_ids, nameless, share)
            state = SyncState.HELD if reason else SyncState.DELETING if count else SyncState.DONE
        fail_point("deletions.before_decide")
        if not _decide(tenant, sync_id, before, state, reason, absent) or state is not SyncState.DELETING:
            return 0
        fail_point("deletions.before_publish")
        with spans.work("send deletions", tenant=tenant.slug, dataset=dataset.slug, sync=sync_id) as tell:
            count = _publish(tenant, dataset, sync_id, names(absent, tenant, dataset))
            tell(deletions=count)
        fail_point("deletions.after_publish")
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            ends = sync_progress.as_json(sync_progress.ends_of(tenant, connection))
            connection.execute(ADVANCE_DELETIONS, [ends, sync_id])
            sync_progress.reached(connection, tenant.tenant_id)
    return count


def _decide(
    tenant: Tenant, sync_id: int, before: str, state: SyncState, reason: str | None, absent: Absent
) -> bool:
    """Record the decision; False if the sync has changed since it was read."""
    values = {
        "sync": sync_id,
        "before": before,
        "state": state,
        "reason": reason,
        "entities": absent.entities,
        "absent": len(absent.numbers),
    }
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        decided = connection.execute(DECIDE, values).rowcount == 1
        connection.execute(sync_progress.FORGET_IDS, [tenant.tenant_id])
    return decided


def find_absent(connection: postgres.Connection, tenant: Tenant, dataset: Dataset, sync_id: int) -> Absent:
    """Find the entities that exist in this snapshot and are missing from a full sync."""
    log = heads.log(connection, dataset.dataset_id)
    newest = Heads.newest(run for _, run in log.runs) if log else heads.NONE
    alive = ~newest.states.is_zero()
    ids = sync_progress.ids(connection, sync_id)
    absent = alive & (newest.ids.places_in(ids) < 0)
    location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
    return Absent(np.sort(newest.updated[absent]), int(alive.sum()), len(ids), location)


def _without_erased(absent: Absent, tenant: Tenant, dataset: Dataset) -> Absent:
    """Leave out entities that were erased: no row of theirs is left, but a head by which they stay away."""
    versions = list(_absent_versions(absent, tenant, dataset, [UPDATED]))
    existing = np.concatenate([absent.numbers[:0], *(rows.column(UPDATED).to_numpy() for rows in versions)])
    erased = len(absent.numbers) - len(existing)
    return replace(absent, numbers=np.sort(existing), entities=absent.entities - erased)


def names(absent: Absent, tenant: Tenant, dataset: Dataset) -> Iterator[Sequence[str]]:
    """Read the ids of absent entities, file by file.

    Raises:
        OSError: the object store failed.
    """
    for rows in _absent_versions(absent, tenant, dataset, ["id", UPDATED]):
        yield rows.column("id").to_pylist()


def _absent_versions(
    absent: Absent, tenant: Tenant, dataset: Dataset, columns: list[str]
) -> Iterator[pa.Table]:
    """Read columns of the absent entities' newest versions, file by file."""
    table = iceberg.load_table((tenant.namespace, dataset.slug), absent.location)
    for path in live_table.live_files(table) if len(absent.numbers) else ():
        with object_store.file_system().open_input_file(object_store.key(path)) as content:
            rows = pq.read_table(content, columns=columns)
        numbers = rows.column(UPDATED).to_numpy()
        at = np.searchsorted(absent.numbers, numbers)
        at[at == len(absent.numbers)] = 0
        yield rows.filter(absent.numbers[at] == numbers)


def _publish(tenant: Tenant, dataset: Dataset, sync_id: int, ids: Iterable[Sequence[str]]) -> int:
    producer = kafka.producer(delivery_timeout_s=FLUSH_S)
    refused: list[KafkaError] = []
    now = utc_text(datetime.now(UTC), timespec="microseconds")
    count = 0

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    try:
        for some in ids:
            for name in some:
                payload = orjson.dumps(deletion_by_sync(name, dataset.slug, now, sync_id))
                producer.produce(tenant.topic, payload, name, on_delivery=acknowledged)
                count += 1
            waiting = kafka.flush(producer, FLUSH_S)
            if waiting or refused:
                why = refused[0] if refused else "time-out"
                raise Transient(
                    f"Kafka did not acknowledge the deletions of a sync: {why}",
                    fix="They are sent again by themselves",
                    topic=tenant.topic,
                    sync=sync_id,
                )
    except (BufferError, KafkaException) as error:
        raise Transient(f"Kafka took no deletions of a sync: {error}", topic=tenant.topic) from error
    return count
