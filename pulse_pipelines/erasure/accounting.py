"""Accounting of an erasure: ledger rows written by the commit that removes the events, one for every offset.

An erasure may commit several times: each commit adds its counts to those of the earlier ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from psycopg.types.multirange import Multirange
from pyiceberg.manifest import DataFile

from pulse_pipelines.curated.commit import forget
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.letters import ERASED_COLUMNS
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.tables import file_metrics, ledger
from pulse_pipelines.tables.ledger import Landing, runs
from pulse_resources import postgres
from pulse_resources.iceberg import Staged

ERASED = """
INSERT INTO erased_offsets AS e (tenant_id, erasure_id, partition, offsets) VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant_id, erasure_id, partition) DO UPDATE SET offsets = e.offsets + EXCLUDED.offsets
"""
LANDED_LETTERS = f"""
UPDATE dead_letters l SET resolution = 'erased', resolved_at = now(), landed_by = NULL, {ERASED_COLUMNS}
FROM unnest(%s::int[], %s::bigint[]) AS found (partition, event_offset)
WHERE l.tenant_id = %s AND l.partition = found.partition AND l.event_offset = found.event_offset
  AND l.resolution = 'landed' RETURNING l.partition, l.event_offset
"""  # noqa: S608 - from constants

Places = Sequence[tuple[int, int]]
"""Partition and offset of each event."""


@dataclass(frozen=True)
class CleanedFile:
    """A data file that held events of the person, and the file that replaces it (None: no row was left)."""

    before: DataFile
    after: DataFile | None
    places: Places
    versions: Sequence[int] = ()
    """`_updated` of the events, in a dataset of entities."""

    @property
    def day(self) -> date:
        return file_metrics.day_of(self.before)

    @property
    def bytes(self) -> int:
        """Bytes by which the table grew; usually negative."""
        after = self.after.file_size_in_bytes if self.after else 0
        return after - self.before.file_size_in_bytes


def account(
    connection: postgres.Connection,
    tenant: Tenant,
    subject: Subject,
    erasure: Erasure,
    hit: Sequence[CleanedFile],
    staged: Staged,
) -> int:
    """Record erased offsets and changed days in the ledger; returns how many summaries were deleted."""
    places = [place for cleaned in hit for place in cleaned.places]
    letters = _restore_letters(connection, tenant, places)
    of_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(set(places) - letters):
        of_partition[partition].append(offset)
    for partition, offsets in of_partition.items():
        erased = Multirange(runs(offsets))
        connection.execute(ERASED, [tenant.tenant_id, erasure.erasure_id, partition, erased])
    of_day: dict[date, list[CleanedFile]] = defaultdict(list)
    for cleaned in hit:
        of_day[cleaned.day].append(cleaned)
    dataset = subject.dataset
    ledger.land(
        connection,
        [
            Landing(
                batch_id=erasure.erasure_id,
                tenant_id=tenant.tenant_id,
                dataset_id=dataset.dataset_id,
                slug=dataset.slug,
                day=day,
                rows=-sum(len(cleaned.places) for cleaned in part),
                duplicates=0,
                bytes=sum(cleaned.bytes for cleaned in part),
                files=-sum(cleaned.after is None for cleaned in part),
                snapshot_id=staged.snapshot_id,
                metadata_location=staged.new,
            )
            for day, part in sorted(of_day.items())
        ],
    )
    return forget(connection, dataset.dataset_id, sorted(of_day))


def _restore_letters(connection: postgres.Connection, tenant: Tenant, places: Places) -> set[tuple[int, int]]:
    """Turn rows that a backfill landed from dead letters into dead letters again, without their payload."""
    partitions, offsets = [p for p, _ in places], [o for _, o in places]
    rows = connection.execute(LANDED_LETTERS, [partitions, offsets, tenant.tenant_id]).fetchall()
    letters = {(partition, offset) for partition, offset in rows}
    # The backfill that landed them had counted them as landed instead of dead-lettered.
    ledger.landed_are_dead_letters(connection, tenant.tenant_id, sorted(letters))
    return letters


def result(
    before: Mapping[str, Any] | None,
    hit: Iterable[CleanedFile],
    snapshot_id: int | None,
    summaries: int,
    states: int,
) -> dict[str, Any]:
    """Result of the rows step, as JSON.

    Args:
        before: result of earlier commits of this step.
        snapshot_id: snapshot of the commit; None: there was nothing to remove.
        summaries: number of summaries that were deleted.
        states: number of events that were removed from the dataset's state.
    """
    earlier = {"days": {}, "files": [], "snapshot_id": None, "summaries": 0, "states": 0, **(before or {})}
    days: dict[str, int] = defaultdict(int, earlier["days"])
    objects = list(earlier["files"])
    for cleaned in hit:
        days[str(cleaned.day)] += len(cleaned.places)
        after = cleaned.after.file_path if cleaned.after else None
        objects.append({"removed": cleaned.before.file_path, "instead": after, "rows": len(cleaned.places)})
    return {
        "rows": sum(days.values()),
        "days": days,
        "files": objects,
        "snapshot_id": snapshot_id or earlier["snapshot_id"],
        "summaries": earlier["summaries"] + summaries,
        "states": earlier["states"] + states,
    }
