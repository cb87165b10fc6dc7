"""Dedup gate: which accepted events are copies, of an earlier one of the batch or of one that landed before.

The gate only reads claims: settle adds them, in the transaction that lands the rows they stand for. So an
attempt that dies leaves no claim behind, and every attempt judges anew, whatever the one before it found.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from pulse_pipelines.ingest.results import Drained, Failure, Gated, Positions, TopicDrained
from pulse_pipelines.tables import claim_files, claims, parquet_files
from pulse_pipelines.tables.claims import Fresh
from pulse_pipelines.tables.digests import ArrivedIds
from pulse_resources import postgres
from pulse_resources.faults import fail_point

CONNECTIONS = 4
"""Tenants that are judged at a time."""


@dataclass(frozen=True)
class _Judged:
    """The events of a tenant, by dataset."""

    duplicates: dict[UUID, Positions] = field(default_factory=dict)
    fresh: dict[UUID, Fresh] = field(default_factory=dict)


def gate(drained: Drained) -> Gated:
    """Find the copies among the ids of all drained topics, in one snapshot per tenant."""
    topics: dict[UUID, list[TopicDrained]] = defaultdict(list)
    failed = {failure.tenant_id for failure in drained.failures}
    for topic in drained.topics:
        if topic.tenant_id not in failed:
            topics[topic.tenant_id].append(topic)
    all_of_them = _Judged()
    failures: list[Failure] = []

    def judged(tenant_id: UUID) -> _Judged | Failure:
        try:
            return _judged(tenant_id, topics[tenant_id])
        except Exception as error:  # whatever it is, it must not become the neighbours' failure
            return Failure(tenant_id, "dedup_gate", f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="gate") as tenants:
        for outcome in tenants.map(judged, list(topics)):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                all_of_them.duplicates.update(outcome.duplicates)
                all_of_them.fresh.update(outcome.fresh)
    return Gated(
        drained.plan,
        drained.topics,
        all_of_them.duplicates,
        all_of_them.fresh,
        (*drained.failures, *failures),
    )


def _judged(tenant_id: UUID, topics: Sequence[TopicDrained]) -> _Judged:
    arrived = _by_dataset(topics)
    found = _Judged()
    if not arrived:
        return found
    with postgres.tenant_transaction("pulse_pipeline", tenant_id, one_snapshot=True) as connection:
        fail_point("gate.before_lookup")
        runs = claims.runs(connection, arrived)
        for dataset_id, ids in arrived.items():
            own = runs.get(dataset_id, [])
            order = ids.digests.order(then=ids.positions)  # of events with one id the first is the event
            digests, positions = ids.digests[order], ids.positions[order]
            copies = digests.repeats()
            first = np.flatnonzero(~copies)
            copies[first[claims.claimed(connection, own, digests[first])]] = True
            if copies.any():
                found.duplicates[dataset_id] = parquet_files.by_partition(positions[copies])
            if not copies.all():
                landing = digests[~copies]
                found.fresh[dataset_id] = claims.fresh(connection, own, landing, positions[~copies])
            claim_files.clean(dataset_id, own)
        fail_point("gate.after_lookup")
    return found


def _by_dataset(topics: Sequence[TopicDrained]) -> Mapping[UUID, ArrivedIds]:
    parts: dict[UUID, list[bytes]] = defaultdict(list)
    for topic in topics:
        for dataset_id, packed in topic.ids.items():
            parts[dataset_id].append(packed)
    return {dataset_id: ArrivedIds.unpacked(packed) for dataset_id, packed in parts.items()}
