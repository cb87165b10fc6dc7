"""Dedup gate: claim every staged event id; who owns the claim already is the event, others are copies.

A claim belongs to a position of the tenant's topic. So a retry finds its own claims and accepts them
again, and of two batches that carry one id exactly one lands it.
"""

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg

from pulse_pipelines.stages.handles import Drained, Failure, Gated, Scope, TopicDrained
from pulse_pipelines.stages.staging import named
from pulse_resources import postgres
from pulse_resources.faults import fail_point

CONNECTIONS = 4
"""Tenants that claim at a time: the work is Postgres', a core each."""

DISCARD_LOST_PARTS = "DELETE FROM staging.{ids} WHERE part <> ALL(%s)"
SORT = "CREATE INDEX ON staging.{ids} (dataset_id, event_id, partition, event_offset)"
ANALYZE = "ANALYZE staging.{ids}"
# Ordered, so that two gates that want the same ids wait for each other instead of deadlocking.
CLAIM = """
INSERT INTO processed_event_ids (tenant_id, dataset_id, partition, event_offset, event_id)
SELECT DISTINCT ON (dataset_id, event_id)
    %(tenant)s::uuid, dataset_id, partition, event_offset, event_id
FROM staging.{ids} WHERE dataset_id = ANY(%(datasets)s)
ORDER BY dataset_id, event_id, partition, event_offset
"""
CLAIM_WHAT_IS_FREE = f"{CLAIM} ON CONFLICT DO NOTHING"
DUPLICATES = """
SELECT s.dataset_id, s.partition, s.event_offset
FROM staging.{ids} s JOIN processed_event_ids c USING (dataset_id, event_id)
WHERE s.dataset_id = ANY(%(datasets)s)
  AND (c.partition, c.event_offset) <> (s.partition, s.event_offset)
ORDER BY 1, 2, 3
"""


def gate(drained: Drained) -> Gated:
    """Claim the ids of all drained topics, a transaction per tenant."""
    topics: dict[UUID, list[TopicDrained]] = defaultdict(list)
    failed = {failure.tenant_id for failure in drained.failures}
    for topic in drained.topics:
        if topic.tenant_id not in failed:
            topics[topic.tenant_id].append(topic)
    _sort_staged(drained, [topic.part for found in topics.values() for topic in found])
    duplicates: dict[UUID, dict[int, list[int]]] = {}
    failures: list[Failure] = []

    def claim(tenant_id: UUID) -> dict[UUID, dict[int, list[int]]] | Failure:
        try:
            return _claim(drained, drained.plan.scopes[tenant_id], topics[tenant_id])
        except psycopg.Error as error:
            return Failure(tenant_id, "dedup_gate", str(error))

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="gate") as tenants:
        for outcome in tenants.map(claim, list(topics)):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                duplicates.update(outcome)
    return Gated(drained, duplicates, tuple(failures))


def _sort_staged(drained: Drained, parts: Sequence[int]) -> None:
    with postgres.transaction("pulse_pipeline") as connection:
        connection.execute(named(DISCARD_LOST_PARTS, drained.plan), [list(parts)])
        connection.execute(named(SORT, drained.plan))
        connection.execute(named(ANALYZE, drained.plan))


def _insert(connection: postgres.Connection, drained: Drained, values: Mapping[str, object]) -> int:
    """Claim what nobody has; returns how many ids that were.

    Mostly nobody has any of them, and finding out costs half as much as looking each up. Where it is not
    so, that shows early: the more of them are taken, the sooner.
    """
    with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
        return connection.execute(named(CLAIM, drained.plan), values).rowcount
    return connection.execute(named(CLAIM_WHAT_IS_FREE, drained.plan), values).rowcount


def _claim(
    drained: Drained, scope: Scope, topics: Sequence[TopicDrained]
) -> dict[UUID, dict[int, list[int]]]:
    staged = sum(sum(count.accepted.values()) for topic in topics for count in topic.partitions.values())
    if not staged:
        return {}
    values = {
        "tenant": scope.tenant.tenant_id,
        "datasets": [dataset.dataset_id for dataset in scope.datasets],
    }
    with postgres.tenant_transaction("pulse_pipeline", scope.tenant.tenant_id) as connection:
        # Settle's commit flushes the log up to itself, and these claims come before it: a claim can
        # be lost in a crash only together with everything that relies on it.
        connection.execute("SET LOCAL synchronous_commit = off")
        fail_point("gate.before_claim")
        claimed = _insert(connection, drained, values)
        fail_point("gate.after_claim")
        if claimed == staged:
            return {}
        found: dict[UUID, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for dataset_id, partition, offset in connection.execute(named(DUPLICATES, drained.plan), values):
            found[dataset_id][partition].append(offset)
    return {dataset_id: dict(positions) for dataset_id, positions in found.items()}
