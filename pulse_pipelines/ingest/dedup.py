"""Dedup gate: finds accepted events that repeat an earlier one of the batch, or one that has landed before.

For datasets of entities it finds the unchanged entities instead (see `ingest.versions`). The remaining events
also have to fit into their tenant's monthly quota (see `ingest.quota`).

The gate only reads claims: settle adds them, in the transaction that lands the rows. So an attempt that dies
leaves no claim behind, and every attempt decides independently of the one before.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import numpy as np

from pulse_pipelines.claims import claim_cache, claim_runs
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.ingest import quota, versions
from pulse_pipelines.ingest.stages import Drained, Failure, Gated, Plan, TopicDrained, Verdicts
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.digests import ArrivedIds
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

CONNECTIONS = 4
"""Tenants that are checked concurrently."""


def gate(drained: Drained) -> Gated:
    """Find the duplicates among the ids of all drained topics, in one snapshot per tenant."""
    topics: dict[UUID, list[TopicDrained]] = defaultdict(list)
    failed = {failure.tenant_id for failure in drained.failures}
    for topic in drained.topics:
        if topic.tenant_id not in failed:
            topics[topic.tenant_id].append(topic)
    verdicts = Verdicts()
    failures = list(drained.failures)

    def reach_verdicts_safely(tenant_id: UUID) -> Verdicts | Failure:
        try:
            return _reach_verdicts(drained.plan, tenant_id, topics[tenant_id])
        except Exception as error:  # an error of any kind must not fail the other tenants
            return Failure(tenant_id, "dedup_gate", f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="gate") as tenants:
        for outcome in tenants.map(reach_verdicts_safely, list(topics)):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                verdicts.include(outcome)
    return Gated(drained.plan, drained.topics, verdicts, tuple(failures))


def _reach_verdicts(plan: Plan, tenant_id: UUID, topics: Sequence[TopicDrained]) -> Verdicts:
    of_entities = {
        dataset.dataset_id: dataset for dataset in plan.scopes[tenant_id].datasets if dataset.of_entities
    }
    arrived = _by_dataset(topics, without=of_entities)
    logs = of_entities.keys() & {dataset_id for topic in topics for dataset_id in topic.ids}
    verdicts = Verdicts()
    if not arrived and not logs:
        return verdicts
    with postgres.tenant_transaction("pulse_pipeline", tenant_id, one_snapshot=True) as connection:
        fail_point("gate.before_lookup")
        for dataset_id in logs:
            _compare_versions(connection, plan, of_entities[dataset_id], topics, verdicts)
        runs = claim_runs.runs(connection, arrived)
        new: dict[UUID, ArrivedIds] = {}
        for dataset_id, ids in arrived.items():
            order = ids.digests.order(then=ids.positions)  # among events with one id the first is kept
            digests, positions = ids.digests[order], ids.positions[order]
            copies = digests.repeats()
            first = np.flatnonzero(~copies)
            copies[first[claim_runs.claimed(connection, runs.get(dataset_id, []), digests[first])]] = True
            if copies.any():
                verdicts.duplicates[dataset_id] = parquet_files.by_partition(positions[copies])
            new[dataset_id] = ArrivedIds(digests[~copies], positions[~copies])
        every = np.concatenate([quota.NONE, *(ids.positions for ids in new.values())])
        over, why = quota.over(connection, plan, plan.scopes[tenant_id], topics, every)
        if len(over):
            verdicts.quota_reasons[tenant_id] = why
        for dataset_id, ids in new.items():
            claimed_runs, landing = runs.get(dataset_id, []), ids
            if len(over) and (refused := np.isin(ids.positions, over)).any():
                verdicts.over_quota[dataset_id] = parquet_files.by_partition(ids.positions[refused])
                landing = ArrivedIds(ids.digests[~refused], ids.positions[~refused])
            if len(landing.positions):
                verdicts.fresh[dataset_id] = claim_runs.fresh(
                    connection, claimed_runs, landing.digests, landing.positions
                )
            claim_cache.clean(dataset_id, claimed_runs)
        fail_point("gate.after_lookup")
    return verdicts


def _compare_versions(
    connection: postgres.Connection,
    plan: Plan,
    dataset: Dataset,
    topics: Sequence[TopicDrained],
    verdicts: Verdicts,
) -> None:
    unchanged, added = versions.compare_versions(connection, plan, dataset, topics)
    if unchanged:
        verdicts.duplicates[dataset.dataset_id] = unchanged
    if added is not None:
        verdicts.appends[dataset.dataset_id] = added


def _by_dataset(topics: Sequence[TopicDrained], without: Collection[UUID]) -> Mapping[UUID, ArrivedIds]:
    parts: dict[UUID, list[bytes]] = defaultdict(list)
    for topic in topics:
        for dataset_id, packed in topic.ids.items():
            if dataset_id not in without:
                parts[dataset_id].append(packed)
    return {dataset_id: ArrivedIds.unpacked(packed) for dataset_id, packed in parts.items()}
