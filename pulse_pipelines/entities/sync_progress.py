"""Syncs as rows: start and end of each in the tenant's topic, its ids and counts, and how it ended.

A sync is a range of the topic; its messages carry no mark. It has settled when the tenant's positions are
beyond its ends. Everything that arrives for its dataset from its start on counts as brought, whoever sent it:
so a full sync deletes nothing that anybody sent since it began.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from psycopg.types.json import Jsonb

from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.parquet_files import Positions, position
from pulse_resources import kafka, postgres
from pulse_resources.errors import Transient

Ends = Mapping[int, int]
"""By partition an offset, in Pulse's count."""

MOST_OPEN = 1_000
"""Open syncs of a tenant, except those of pipes."""
MOST_EMPTY_FULL = 10
"""Full syncs among them of a dataset of which no part was accepted yet: the others supersede each other."""
MOST_SENT = 1_000
"""Syncs of a tenant, except those of pipes, that were sent whole and have not settled."""

POSITIONS = "SELECT partition, base_offset, topic_id FROM ingest_positions WHERE tenant_id = %s"
UNFINISHED = """
SELECT sync_id, dataset_id, is_full, state, starts, ends FROM entity_syncs
WHERE {whose} = %s AND state IN ('open', 'sent', 'held', 'deleting') ORDER BY sync_id
"""
# What runs of pipes sent before they failed, as far as it has not settled. Of each pipe the latest syncs
# alone: a run that failed is followed by another after a minute or more.
FAILED_LATELY = """
SELECT s.sync_id, s.dataset_id, s.state, s.starts, s.ends FROM pipes p CROSS JOIN LATERAL (
    SELECT * FROM entity_syncs s WHERE s.tenant_id = p.tenant_id AND s.pipe = p.pipe
    ORDER BY s.sync_id DESC LIMIT 3) s
WHERE p.tenant_id = %s AND s.state = 'failed' AND s.ends IS NOT NULL
    AND s.ended_at > now() - interval '24 hours'
"""
IDS = "SELECT ids FROM entity_sync_ids WHERE sync_id = %s ORDER BY run"
ADD_IDS = "INSERT INTO entity_sync_ids (tenant_id, sync_id, ids) VALUES (%s, %s, %s)"
COUNT = """
UPDATE entity_syncs SET created = created + %(created)s, changed = changed + %(changed)s,
    unchanged = unchanged + %(unchanged)s, deleted = deleted + %(deleted)s,
    refused = refused + %(refused)s, nameless = nameless + %(nameless)s
WHERE sync_id = %(sync)s
"""
BEYOND = """NOT EXISTS (
    SELECT FROM jsonb_each_text({ends}) e
    LEFT JOIN ingest_positions p ON p.tenant_id = s.tenant_id AND p.partition = e.key::int
    WHERE coalesce(p.settled_offset, 0) < e.value::bigint)"""
REACHED = f"""
UPDATE entity_syncs s SET settled_at = now(),
    state = CASE WHEN is_full THEN state ELSE 'done' END,
    ended_at = CASE WHEN is_full THEN NULL ELSE now() END
WHERE tenant_id = %s AND state = 'sent' AND settled_at IS NULL AND {BEYOND.format(ends="s.ends")}
"""  # noqa: S608 - from constants
FINISH_DELETIONS = f"""
UPDATE entity_syncs s SET state = 'done', ended_at = now()
WHERE tenant_id = %s AND state = 'deleting' AND {BEYOND.format(ends="s.swept_to")} AND swept_to IS NOT NULL
"""  # noqa: S608 - from constants
FORGET_IDS = """
DELETE FROM entity_sync_ids i USING entity_syncs s
WHERE i.tenant_id = %s AND i.sync_id = s.sync_id AND s.state NOT IN ('open', 'sent', 'held', 'deleting')
"""
# The syncs of pipes end with the runs that send them.
FORSAKEN = "s.state = 'open' AND s.pipe IS NULL AND s.part_at < now() - make_interval(secs => {seconds})"
EXPIRE = f"""
UPDATE entity_syncs s SET state = 'failed', ended_at = now(), reason = 'no part of it came for ' || %(said)s
WHERE s.tenant_id = %(tenant)s AND {FORSAKEN.format(seconds="%(seconds)s")}
"""  # noqa: S608 - from constants
# Rows that are locked belong to a batch that settles: the next request that begins a sync fails them.
FAIL_OLDEST = """
UPDATE entity_syncs SET state = 'failed', ended_at = now(), reason = %(reason)s
WHERE sync_id IN (SELECT sync_id FROM entity_syncs WHERE state = 'open' AND sync_id = ANY(ARRAY(
    SELECT sync_id FROM entity_syncs WHERE tenant_id = %(tenant)s AND state = 'open' AND pipe IS NULL
        AND (%(dataset)s::uuid IS NULL OR dataset_id = %(dataset)s AND is_full AND parts = 0)
    ORDER BY sync_id DESC OFFSET %(most)s)) FOR UPDATE SKIP LOCKED)
"""
COUNT_SENT = """
SELECT count(*) FROM entity_syncs WHERE tenant_id = %s AND state = 'sent' AND pipe IS NULL
"""
FAIL = """
UPDATE entity_syncs SET state = 'failed', ended_at = now(), reason = %s
WHERE tenant_id = %s AND state IN ('open', 'sent', 'held', 'deleting')
"""


class Unfinished(NamedTuple):
    """A sync that has not ended yet."""

    sync_id: int
    dataset_id: UUID
    is_full: bool
    state: SyncState
    starts: Positions
    """By partition, as `parquet_files.position`; partitions that were added later begin with the sync."""
    ends: Positions | None

    def within(self, positions: Positions) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Mask of the positions within the sync; until it is sent, all from its start on."""
        mask = self.since(positions)
        if self.ends is not None:
            mask &= positions < self.ends[np.clip(positions >> 48, 0, len(self.ends) - 1)]
        return mask

    def is_over(self, positions: Positions) -> bool:
        """Whether all of these positions are at or after its end."""
        if self.ends is None:
            return False
        within = positions[positions >> 48 < len(self.ends)]
        return bool((within >= self.ends[within >> 48]).all())

    def since(self, positions: Positions) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Mask of the positions at or after its start."""
        partitions = positions >> 48
        existing = partitions < len(self.starts)
        return ~existing | (positions >= self.starts[np.where(existing, partitions, 0)])


class Counts(NamedTuple):
    """Outcomes of the events of a sync in one batch, counted."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    refused: int = 0
    nameless: int = 0


def ends_of(tenant: Tenant, connection: postgres.Connection) -> dict[int, int]:
    """Current end offsets of the tenant's topic, by partition, in Pulse's count.

    Raises:
        Transient: the broker does not answer, or the topic is not the one that is ingested.
    """
    positions = connection.execute(POSITIONS, [tenant.tenant_id]).fetchall()
    topic_ids = {topic_id for _, _, topic_id in positions if topic_id is not None}
    current = kafka.topic_ids([tenant.topic]).get(tenant.topic)
    if current is None or topic_ids - {current}:
        raise Transient(
            "the tenant's topic is gone, or was recreated: it is unknown where a sync ends",
            fix=f"See `pulse status`; to continue with what it holds: pulse tenant accept-loss {tenant.slug}",
            tenant=tenant.slug,
        )
    bases = {partition: base for partition, base, _ in positions}
    count = kafka.partition_counts().get(tenant.topic, 0)
    answers = kafka.offsets([(tenant.topic, partition) for partition in range(count)], "latest")
    ends = {}
    for (_, partition), answer in answers.items():
        if not isinstance(answer, int):
            raise Transient(
                f"the broker does not say where the topic ends: {kafka.error_text(answer)}",
                tenant=tenant.slug,
            )
        ends[partition] = bases.get(partition, 0) + answer
    return ends


def unfinished(
    connection: postgres.Connection,
    *,
    tenant_id: UUID | None = None,
    dataset_id: UUID | None = None,
    lock: bool = False,
) -> list[Unfinished]:
    """Select the syncs of a tenant, or of one dataset, that have not ended, oldest first.

    Args:
        lock: lock the rows until the transaction ends.
    """
    query = UNFINISHED.format(whose="tenant_id" if dataset_id is None else "dataset_id")
    rows = connection.execute(query + ("FOR UPDATE" if lock else ""), [dataset_id or tenant_id])
    return [
        Unfinished(number, owner, is_full, SyncState(state), _packed(starts), ends and _packed(ends))
        for number, owner, is_full, state, starts, ends in rows
    ]


def failed_lately(connection: postgres.Connection, tenant_id: UUID) -> list[Unfinished]:
    """Select the latest failed runs of the tenant's pipes: their events are counted, and delete nothing."""
    return [
        Unfinished(number, owner, False, SyncState(state), _packed(starts), _packed(ends))
        for number, owner, state, starts, ends in connection.execute(FAILED_LATELY, [tenant_id])
    ]


def ids(connection: postgres.Connection, sync_id: int) -> Digests:
    """Load the ids that a full sync has contained so far, as a run."""
    rows: Any = connection.execute(IDS, [sync_id], binary=True)
    return Digests.joined(Digests.unpacked(packed) for (packed,) in rows).run()


def add_ids(connection: postgres.Connection, tenant_id: UUID, sync_id: int, added: Digests) -> None:
    """Record ids that a full sync contains."""
    if len(added):
        connection.execute(ADD_IDS, [tenant_id, sync_id, added.run().packed()])


def count(connection: postgres.Connection, counts: Mapping[int, Counts]) -> None:
    """Add counts to the rows of syncs, by their ids."""
    values = [{"sync": sync_id, **counted._asdict()} for sync_id, counted in counts.items() if any(counted)]
    if values:
        connection.cursor().executemany(COUNT, values)


def reached(connection: postgres.Connection, tenant_id: UUID) -> None:
    """Advance the syncs whose ends the tenant's positions have passed, in this transaction."""
    connection.execute(REACHED, [tenant_id])
    if connection.execute(FINISH_DELETIONS, [tenant_id]).rowcount:
        connection.execute(FORGET_IDS, [tenant_id])


def expire(connection: postgres.Connection, tenant_id: UUID, seconds: float) -> None:
    """Fail the tenant's open syncs without a part for so long: their ids need not be kept."""
    values = {"tenant": tenant_id, "seconds": seconds, "said": f"{seconds / 3600:g} hours"}
    if connection.execute(EXPIRE, values).rowcount:
        connection.execute(FORGET_IDS, [tenant_id])


def make_room(connection: postgres.Connection, tenant: Tenant, dataset_id: UUID) -> None:
    """Fail the tenant's oldest open syncs, except those of pipes, so that one more has room.

    Each batch counts for each of them, and stores for each full sync the ids of its dataset.

    Raises:
        Transient: too many have been sent and not settled.
    """
    for dataset, most in ((None, MOST_OPEN), (dataset_id, MOST_EMPTY_FULL)):
        values = {
            "tenant": tenant.tenant_id,
            "dataset": dataset,
            "most": most - 1,
            "reason": f"{most:,} syncs began after it, and none of its parts came meanwhile",
        }
        connection.execute(FAIL_OLDEST, values)
    ((count,),) = connection.execute(COUNT_SENT, [tenant.tenant_id]).fetchall()
    if count >= MOST_SENT:
        raise Transient(
            f"{count:,} syncs of the tenant were sent whole and have not settled",
            fix="Send it again after they have settled, or send more entities in each sync",
            tenant=tenant.slug,
        )


def fail(connection: postgres.Connection, tenant_id: UUID, why: str) -> None:
    """Fail the tenant's syncs: some of their events are lost, so they must delete nothing."""
    connection.execute(FAIL, [why, tenant_id])
    connection.execute(FORGET_IDS, [tenant_id])


def as_json(ends: Ends) -> Jsonb:
    """Ends as JSON for Postgres."""
    return Jsonb({str(partition): offset for partition, offset in ends.items()})


def _packed(ends: Mapping[str, int]) -> Positions:
    offsets = {int(partition): offset for partition, offset in ends.items()}
    last = max(offsets, default=0)
    return np.array(
        [position(partition, offsets.get(partition, 0)) for partition in range(last + 1)], np.int64
    )
