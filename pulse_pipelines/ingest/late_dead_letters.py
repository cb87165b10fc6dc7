"""Unlanded events: conformed events that cannot land after all are staged as dead letters.

Their dataset's table cannot take them, or their tenant's monthly quota is full. The original bytes come from
the raw-zone objects that this attempt wrote.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import orjson

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.ingest.stages import Failure, Landed, LandingFailed, Positions
from pulse_pipelines.ingest.staging import copy_dead_letters
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.digests import ArrivedIds
from pulse_pipelines.tables.parquet_files import position
from pulse_resources import postgres

Rows = Iterator[tuple[object, ...]]


def stage(landed: Landed) -> tuple[Landed, Mapping[UUID, Sequence[int]]]:
    """Stage the rows of refused datasets, and those over a quota, as dead letters.

    Returns:
        The batch, with a failure of each tenant whose rows could not be staged, and staging marks by tenant.
    """
    marks: dict[UUID, list[int]] = defaultdict(list)
    failures: dict[UUID, Failure] = {}
    for tenant_id, scope in landed.plan.scopes.items():
        try:
            for refused in landed.refused:
                if refused.tenant_id == tenant_id:
                    marks[tenant_id].append(stage_rows_of(landed, refused))
            for dataset in scope.datasets:
                if dataset.dataset_id in landed.verdicts.over_quota:
                    marks[tenant_id].append(_stage_over_quota(landed, dataset))
        except Exception as error:  # of any kind: it must not fail the other tenants
            failures[tenant_id] = Failure(tenant_id, "settle", f"{type(error).__name__}: {error}")
    return replace(landed, failures=(*landed.failures, *failures.values())), marks


def stage_rows_of(landed: Landed, refused: LandingFailed) -> int:
    """Stage the rows of one refused dataset as dead letters; returns their staging mark.

    Raises:
        OSError: the object store failed.
    """
    scope = landed.plan.scopes[refused.tenant_id]
    dataset = next(dataset for dataset in scope.datasets if dataset.dataset_id == refused.dataset_id)
    of_tasks = (topic.ids.get(refused.dataset_id) for topic in landed.topics)
    arrived = ArrivedIds.unpacked(ids for ids in of_tasks if ids is not None)
    unlanded = set(arrived.positions.tolist())
    for unlanded_by_dataset in (landed.verdicts.duplicates, landed.verdicts.over_quota):
        unlanded -= _set_of(unlanded_by_dataset.get(refused.dataset_id, {}))
    return _stage(landed, dataset, unlanded, Reason.LANDING_FAILED, refused.error)


def _stage_over_quota(landed: Landed, dataset: Dataset) -> int:
    unlanded = _set_of(landed.verdicts.over_quota[dataset.dataset_id])
    why = landed.verdicts.quota_reasons[dataset.tenant_id]
    return _stage(landed, dataset, unlanded, Reason.OVER_QUOTA, why)


def _set_of(positions: Positions) -> set[int]:
    return {position(partition, offset) for partition, offsets in positions.items() for offset in offsets}


def _stage(landed: Landed, dataset: Dataset, unlanded: set[int], reason: Reason, why: str) -> int:
    mark = random.SystemRandom().getrandbits(62)
    with postgres.transaction("pulse_pipeline") as connection:
        copy_dead_letters(connection, landed.plan, _rows(landed, dataset, mark, unlanded, reason, why))
    return mark


def _rows(landed: Landed, dataset: Dataset, mark: int, unlanded: set[int], reason: Reason, why: str) -> Rows:
    paths = {
        written.path
        for topic in landed.topics
        if topic.tenant_id == dataset.tenant_id
        for written in topic.raw
        if written.slug == dataset.slug
    }
    for partition, offset, received, event_id, payload in _raw_events(sorted(paths)):
        if position(partition, offset) in unlanded:
            yield (
                mark,
                dataset.tenant_id,
                partition,
                offset,
                dataset.slug,
                event_id,
                reason.value,
                None,
                why,
                payload,
                received,
            )


def _raw_events(paths: Iterable[str]) -> Iterator[tuple[int, int, datetime, str, bytes]]:
    for path in paths:
        for message in raw_zone.messages(raw_zone.content(path)):
            event_id = orjson.loads(message.payload).get("event_id")
            received = datetime.fromtimestamp(message.received_ms / 1000, UTC)
            yield message.partition, message.offset, received, event_id, message.payload
