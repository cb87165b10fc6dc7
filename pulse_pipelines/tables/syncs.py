"""Syncs as rows: where in the tenant's topic each begins and ends, what it brought, what became of it.

A sync is a stretch of the topic: its messages are nowhere marked. It has settled when the positions of the
tenant are beyond its ends. What comes for its dataset from its start on counts as brought, whoever sent it:
so nothing that anybody sent since a full sync began is deleted by it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from psycopg.types.json import Jsonb

from pulse_pipelines.domain.syncs import State
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.parquet_files import Positions, position
from pulse_resources import kafka, postgres
from pulse_resources.errors import Transient

Ends = Mapping[int, int]
"""By partition an offset, as Pulse counts them."""

POSITIONS = "SELECT partition, base_offset, topic_id FROM ingest_positions WHERE tenant_id = %s"
UNFINISHED = """
SELECT sync_id, dataset_id, is_full, state, starts, ends FROM entity_syncs
WHERE {whose} = %s AND state IN ('open', 'sent', 'held', 'deleting') ORDER BY sync_id
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
SWEPT = f"""
UPDATE entity_syncs s SET state = 'done', ended_at = now()
WHERE tenant_id = %s AND state = 'deleting' AND {BEYOND.format(ends="s.swept_to")} AND swept_to IS NOT NULL
"""  # noqa: S608 - from constants
FORGET_IDS = """
DELETE FROM entity_sync_ids i USING entity_syncs s
WHERE i.tenant_id = %s AND i.sync_id = s.sync_id AND s.state NOT IN ('open', 'sent', 'held', 'deleting')
"""
FAIL = """
UPDATE entity_syncs SET state = 'failed', ended_at = now(), reason = %s
WHERE tenant_id = %s AND state IN ('open', 'sent', 'held', 'deleting')
"""


class Unfinished(NamedTuple):
    """A sync that has not ended."""

    sync_id: int
    dataset_id: UUID
    is_full: bool
    state: State
    starts: Positions
    """By partition, as `parquet_files.position`; partitions beyond it begin with the sync."""
    ends: Positions | None

    def within(self, positions: Positions) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which topic positions are of it; until it is sent, all from its start on."""
        found = self.since(positions)
        if self.ends is not None:
            found &= positions < self.ends[np.clip(positions >> 48, 0, len(self.ends) - 1)]
        return found

    def since(self, positions: Positions) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which topic positions are not before its start."""
        partitions = positions >> 48
        known = partitions < len(self.starts)
        return ~known | (positions >= self.starts[np.where(known, partitions, 0)])


class Counts(NamedTuple):
    """What became of what a sync brought, in one batch."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    refused: int = 0
    nameless: int = 0


def ends_of(tenant: Tenant, connection: postgres.Connection) -> dict[int, int]:
    """Where the tenant's topic ends now, by partition, as Pulse counts offsets.

    Raises:
        Transient: the broker does not say, or the topic is another one than that which is ingested.
    """
    positions = connection.execute(POSITIONS, [tenant.tenant_id]).fetchall()
    known = {topic_id for _, _, topic_id in positions if topic_id is not None}
    current = kafka.topic_ids([tenant.topic]).get(tenant.topic)
    if current is None or known - {current}:
        raise Transient(
            "the tenant's topic is gone, or was recreated: nobody can tell where a sync ends",
            fix=f"See `pulse status`; to go on with what it holds: pulse tenant accept-loss {tenant.slug}",
            tenant=tenant.slug,
        )
    bases = {partition: base for partition, base, _ in positions}
    count = kafka.partition_counts().get(tenant.topic, 0)
    answers = kafka.offsets([(tenant.topic, partition) for partition in range(count)], "latest")
    found = {}
    for (_, partition), answer in answers.items():
        if not isinstance(answer, int):
            raise Transient(
                f"the broker does not say where the topic ends: {kafka.said(answer)}", tenant=tenant.slug
            )
        found[partition] = bases.get(partition, 0) + answer
    return found


def unfinished(
    connection: postgres.Connection,
    *,
    tenant_id: UUID | None = None,
    dataset_id: UUID | None = None,
    lock: bool = False,
) -> list[Unfinished]:
    """The syncs of a tenant, or of one dataset, that have not ended, oldest first.

    Args:
        lock: keep them from changing until the transaction ends.
    """
    query = UNFINISHED.format(whose="tenant_id" if dataset_id is None else "dataset_id")
    found = connection.execute(query + ("FOR UPDATE" if lock else ""), [dataset_id or tenant_id])
    return [
        Unfinished(number, owner, is_full, State(state), _packed(starts), ends and _packed(ends))
        for number, owner, is_full, state, starts, ends in found
    ]


def ids(connection: postgres.Connection, sync_id: int) -> Digests:
    """A run of what a full sync brought so far."""
    found: Any = connection.execute(IDS, [sync_id], binary=True)
    return Digests.joined(Digests.unpacked(packed) for (packed,) in found).run()


def add_ids(connection: postgres.Connection, tenant_id: UUID, sync_id: int, added: Digests) -> None:
    """Note what a full sync brought."""
    if len(added):
        connection.execute(ADD_IDS, [tenant_id, sync_id, added.run().packed()])


def count(connection: postgres.Connection, sync_id: int, counts: Counts) -> None:
    """Add to what is known of a sync."""
    connection.execute(COUNT, {"sync": sync_id, **counts._asdict()})


def reached(connection: postgres.Connection, tenant_id: UUID) -> None:
    """Move on the syncs whose ends the tenant's positions are beyond, in this transaction."""
    connection.execute(REACHED, [tenant_id])
    if connection.execute(SWEPT, [tenant_id]).rowcount:
        connection.execute(FORGET_IDS, [tenant_id])


def fail(connection: postgres.Connection, tenant_id: UUID, why: str) -> None:
    """End the tenant's syncs: some of what they brought is lost, so they delete nothing."""
    connection.execute(FAIL, [why, tenant_id])
    connection.execute(FORGET_IDS, [tenant_id])


def as_json(ends: Ends) -> Jsonb:
    """As Postgres has them."""
    return Jsonb({str(partition): offset for partition, offset in ends.items()})


def _packed(ends: Mapping[str, int]) -> Positions:
    known = {int(partition): offset for partition, offset in ends.items()}
    last = max(known, default=0)
    return np.array([position(each, known.get(each, 0)) for each in range(last + 1)], np.int64)
