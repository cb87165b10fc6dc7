"""Dedup gate: which staged events are copies, of an earlier event of the batch or of one that landed before.

The gate only reads claims: settle writes them, in the transaction that lands the rows they stand for. So an
attempt that dies leaves no claim behind, and every attempt judges anew, whatever the one before it found.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from pulse_pipelines.domain.scope import Scope
from pulse_pipelines.ingest.results import Drained, Failure, Gated, Plan, TopicDrained
from pulse_pipelines.ingest.staging import named
from pulse_resources import postgres
from pulse_resources.faults import fail_point

CONNECTIONS = 4
"""Tenants that are judged at a time: the work is Postgres', a core each."""

# Of a batch's events with one id the first by position is the event, if no row has the id already. What is
# left in the staging table afterwards are the ids that settle claims. An array of ids makes Postgres go
# through the index once, in its order: half the cost of a lookup per id.
TAKE_OUT_COPIES = """
WITH staged AS NOT MATERIALIZED (
    SELECT * FROM staging.{ids} WHERE dataset_id = ANY(%(datasets)s) AND part = ANY(%(parts)s)),
twice AS (
    SELECT dataset_id, event_id, min(ARRAY[partition::bigint, event_offset]) AS first
    FROM staged GROUP BY 1, 2 HAVING count(*) > 1),
claimed AS (
    SELECT a.dataset_id, c.event_id
    FROM (SELECT dataset_id, array_agg(event_id) AS ids FROM staged GROUP BY 1) a
    CROSS JOIN LATERAL (
        SELECT event_id FROM processed_event_ids c
        WHERE c.dataset_id = a.dataset_id AND c.event_id = ANY(a.ids)) c)
DELETE FROM staging.{ids}
WHERE dataset_id = ANY(%(datasets)s) AND part = ANY(%(parts)s)
  AND ((dataset_id, event_id) IN (TABLE claimed)
    OR ((dataset_id, event_id) IN (SELECT dataset_id, event_id FROM twice)
      AND ARRAY[partition::bigint, event_offset] NOT IN (SELECT first FROM twice)))
RETURNING dataset_id, partition, event_offset
"""
# Left to itself, the planner may read all claims of a large dataset instead.
NO_FULL_SCANS = "SET LOCAL enable_seqscan = off"


def gate(drained: Drained) -> Gated:
    """Find the copies among the ids of all drained topics, a transaction per tenant."""
    topics: dict[UUID, list[TopicDrained]] = defaultdict(list)
    failed = {failure.tenant_id for failure in drained.failures}
    for topic in drained.topics:
        if topic.tenant_id not in failed:
            topics[topic.tenant_id].append(topic)
    duplicates: dict[UUID, Mapping[int, list[int]]] = {}
    failures: list[Failure] = []

    def copies(tenant_id: UUID) -> dict[UUID, dict[int, list[int]]] | Failure:
        try:
            return _copies(drained.plan, drained.plan.scopes[tenant_id], topics[tenant_id])
        except Exception as error:  # whatever it is, it must not become the neighbours' failure
            return Failure(tenant_id, "dedup_gate", f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="gate") as tenants:
        for outcome in tenants.map(copies, list(topics)):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                duplicates.update(outcome)
    return Gated(drained.plan, drained.topics, duplicates, (*drained.failures, *failures))


def _copies(plan: Plan, scope: Scope, topics: Sequence[TopicDrained]) -> dict[UUID, dict[int, list[int]]]:
    """By dataset and partition: the sorted offsets of copies."""
    if not any(count.accepted for topic in topics for count in topic.partitions.values()):
        return {}
    staged = {
        "datasets": [dataset.dataset_id for dataset in scope.datasets],
        "parts": [topic.part for topic in topics],
    }
    found: dict[UUID, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    with postgres.tenant_transaction("pulse_pipeline", scope.tenant.tenant_id) as connection:
        connection.execute(NO_FULL_SCANS)
        fail_point("gate.before_lookup")
        rows = connection.execute(named(TAKE_OUT_COPIES, plan), staged)
        for dataset_id, partition, offset in sorted(rows):
            found[dataset_id][partition].append(offset)
        fail_point("gate.after_lookup")
    return {dataset_id: dict(positions) for dataset_id, positions in found.items()}
