"""Duplicates in the raw zone: the events behind the positions that the ledger counts as duplicates.

A duplicate is a copy of an event that landed; otherwise it should have landed itself. The ledger keeps only
its position; which event it copies has to be read from the raw zone.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
import pyarrow as pa

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.claimed_rows import EVENTS
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.parquet_files import position
from pulse_resources import postgres

# The event that owns a duplicate's id is a row, unless the same batch refused it after an earlier attempt had
# accepted it. (If the dataset could not land, the owner is a dead letter that stands for its copies.)
DUPLICATES = """
SELECT r.batch_id, r.partition, r.duplicate_offsets
FROM ingest_ranges r JOIN ingest_batches b USING (batch_id)
WHERE r.tenant_id = %(tenant)s AND NOT isempty(r.duplicate_offsets) AND (%(all)s OR b.attempt > 1 AND EXISTS (
    SELECT FROM dead_letters l
    WHERE l.tenant_id = r.tenant_id AND l.batch_id = r.batch_id AND l.event_id IS NOT NULL))
"""
OBJECTS = """
SELECT DISTINCT path, batch_id FROM raw_objects
WHERE tenant_id = %s AND batch_id = ANY(%s) AND removed_at IS NULL ORDER BY path
"""


@dataclass(frozen=True)
class DuplicatePlan:
    """Duplicates to look up, and the raw objects that hold them."""

    positions: dict[str, set[int]]
    """Positions by batch."""
    objects: Sequence[tuple[str, str]]
    """Path and batch of each object."""


class _Copy(NamedTuple):
    dataset: str
    partition: int
    offset: int
    event_id: str


@dataclass
class Copies:
    """Duplicates found in the raw zone."""

    events: dict[str, pa.Table] = field(default_factory=dict)
    """Events by dataset slug, with the columns of `claimed_rows.EVENTS`."""
    unreadable: list[str] = field(default_factory=list)
    """Raw objects that are missing or damaged, and why."""


def find_duplicates(connection: postgres.Connection, tenant: Tenant, *, everything: bool) -> DuplicatePlan:
    """Duplicates whose events may have no row; with `everything`, all that the raw zone still has."""
    positions: dict[str, set[int]] = defaultdict(set)
    values = {"tenant": tenant.tenant_id, "all": everything}
    for batch, partition, spans in connection.execute(DUPLICATES, values):
        for span in spans:
            offsets = range(span.lower, span.upper)
            positions[batch].update(position(partition, offset) for offset in offsets)
    objects = connection.execute(OBJECTS, [tenant.tenant_id, list(positions)]).fetchall()
    return DuplicatePlan(dict(positions), objects)


def read(plan: DuplicatePlan) -> Copies:
    """Read the duplicates' events from the raw zone.

    Raises:
        OSError: the object store does not answer.
    """
    copies = Copies()
    by_dataset: dict[str, list[_Copy]] = defaultdict(list)
    for path, batch in plan.objects:
        try:
            for copy in _copies(path, plan.positions[batch]):
                by_dataset[copy.dataset].append(copy)
        except (FileNotFoundError, EOFError, ValueError) as error:
            copies.unreadable.append(f"raw object {path}: {error}")
    for slug, events in by_dataset.items():
        _, *columns = zip(*events, strict=True)
        copies.events[slug] = pa.table(dict(zip(EVENTS.names, columns, strict=True)), EVENTS)
    return copies


def _copies(path: str, positions: set[int]) -> Iterator[_Copy]:
    packed = raw_zone.content(path)
    try:
        for message in raw_zone.messages(packed):
            if position(message.partition, message.offset) in positions:
                event = orjson.loads(message.payload)
                yield _Copy(event["dataset"], message.partition, message.offset, event["event_id"])
    except OSError as error:
        raise ValueError(f"it is damaged: {error}") from error
