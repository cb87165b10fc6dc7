"""Quota: finds a tenant's new events beyond its monthly quota of records. They become dead letters.

The HTTP API counts the events it accepts, and marks them with a header; producers may also write to the topic
directly. So the dedup gate reserves a place in the quota for every row that a batch is to land, however its
event was sent (see `registry.intake`): the header only decides which events come first. An event without a
place becomes a dead letter, `over_quota`, which a replay releases. It counts in the month of its append to
the topic, by the broker's clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from uuid import UUID

import numpy as np

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.quota import limited
from pulse_pipelines.ingest import attempts
from pulse_pipelines.ingest.stages import Plan, TopicDrained
from pulse_pipelines.registry import intake, quotas
from pulse_pipelines.registry.intake import Rows
from pulse_pipelines.tables.parquet_files import Positions, position
from pulse_resources import kafka, postgres
from pulse_resources.errors import Transient
from pulse_resources.process.faults import fail_point

NONE: Positions = np.empty(0, np.int64)


def over(
    connection: postgres.Connection, plan: Plan, scope: Scope, topics: Sequence[TopicDrained], new: Positions
) -> tuple[Positions, str]:
    """The positions of a tenant's new events over its quota, with reasons; the others get reserved places.

    Events whose header says that the API counted them come first, then the others; each in the order of
    their partitions and offsets.

    Args:
        connection: in the tenant's session.
        new: positions of the events that are not duplicates, in any order.

    Raises:
        Fenced: a newer attempt owns the batch.
        Transient: the broker does not say when events were received.
    """
    maximum = quotas.records_per_month(connection)
    if not limited(maximum) or not len(new):
        return NONE, ""
    verdicts = [
        position(partition, 0) + np.array(count.counted, np.int64)
        for topic in topics
        for partition, count in topic.partitions.items()
    ]
    by_month: dict[date, tuple[Positions, Positions]] = {}
    for month, events in _by_month(intake.this_month(connection), scope, topics, np.sort(new)).items():
        counted = np.isin(events, np.concatenate(verdicts))
        by_month[month] = events[counted], events[~counted]
    requested = {
        month: Rows(len(counted), len(uncounted)) for month, (counted, uncounted) in by_month.items()
    }
    granted = _hold(plan, scope.tenant.tenant_id, requested, maximum)
    fail_point("gate.after_hold")
    full = [month for month in sorted(by_month) if granted[month] != requested[month]]
    if not full:
        return NONE, ""
    months = " and ".join(f"{month:%Y-%m}" for month in full)
    why = f"{months} has no place left for it: {maximum:,} records per month, whichever way they come"
    refused = [
        part[count:] for month in full for part, count in zip(by_month[month], granted[month], strict=True)
    ]
    return np.concatenate(refused), why


def _hold(plan: Plan, tenant_id: UUID, requested: Mapping[date, Rows], maximum: int) -> Mapping[date, Rows]:
    """Reserve places in a separate transaction: the API waits for its lock, and must not wait for a batch."""
    with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
        attempts.fence(connection, plan)
        return intake.hold(connection, tenant_id, plan.batch_id, requested, maximum)


def _by_month(
    this: date, scope: Scope, topics: Iterable[TopicDrained], new: Positions
) -> Mapping[date, Positions]:
    """Positions of new events by the month in which they were received: this month, or the one before."""
    begins = datetime(this.year, this.month, 1, tzinfo=UTC)
    oldest = min(count.oldest_ms for topic in topics for count in topic.partitions.values())
    if oldest >= begins.timestamp() * 1000:
        return {this: new}
    tenant, bases = scope.tenant, scope.bases
    firsts = kafka.offsets([(tenant.topic, partition) for partition in bases], begins)
    early = np.zeros(len(new), np.bool_)
    for (_, partition), first in firsts.items():
        if not isinstance(first, int):
            raise Transient(
                f"the broker does not answer: {kafka.error_text(first)}",
                tenant=tenant.slug,
                partition=partition,
            )
        end = position(partition + 1, 0) if first < 0 else position(partition, first + bases[partition])
        early[np.searchsorted(new, position(partition, 0)) : np.searchsorted(new, end)] = True
    before = date(this.year - (this.month == 1), (this.month - 2) % 12 + 1, 1)
    return {month: events for month, events in ((before, new[early]), (this, new[~early])) if len(events)}
