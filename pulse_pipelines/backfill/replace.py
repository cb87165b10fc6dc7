"""Replacement: one commit swaps the rebuilt day into the table, and records the letters that landed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyiceberg.table import Table

from pulse_pipelines.backfill.letters import Landing
from pulse_pipelines.backfill.plan import DayPlan, day_files
from pulse_pipelines.backfill.rebuild import Rebuilt
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.quota import EVENTS
from pulse_pipelines.ingest import candidate_files
from pulse_pipelines.states import state_keys, window_buckets
from pulse_pipelines.tables import ledger, parquet_files
from pulse_pipelines.tables.commit import DatasetChange, DatasetWork, commit
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import Staged

BACKFILL_PROPERTY = "pulse.backfill-id"

RECORD = """
INSERT INTO backfills (tenant_id, backfill_id, dataset_id, slug, day, schema_version, rows, dead_letters,
    files_before, files_after, bytes, snapshot_id, run_id)
VALUES (%(tenant)s, %(backfill)s, %(dataset)s, %(slug)s, %(day)s, %(version)s, %(rows)s, %(letters)s,
    %(before)s, %(after)s, %(bytes)s, %(snapshot)s, %(run)s)
"""
RESOLVE = """
UPDATE dead_letters l SET resolution = 'landed', resolved_at = now(), landed_by = %(backfill)s
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS found (partition, event_offset)
WHERE l.tenant_id = %(tenant)s AND l.partition = found.partition AND l.event_offset = found.event_offset
  AND l.resolution IS NULL
"""


class Overtaken(Exception):  # noqa: N818 - the plan is outdated: plan again
    """Another writer replaced a file of the day, claimed an event id, resolved a letter or
    declared a state since the plan."""


def replace(
    plan: DayPlan, rebuilt: Rebuilt, backfill_id: str, version: int, run_id: str | None
) -> tuple[Staged, tuple[CandidateFile, ...]]:
    """Swap the rebuilt files for those in the plan; files that landed since then stay.

    Returns:
        The committed metadata, and the files as the table has them.

    Raises:
        Overtaken: nothing was changed.
        Transient, Terminal, OSError, psycopg.Error: as `commit`; nothing was changed.
    """
    change = _Replacement(plan.tenant, plan.dataset, plan, rebuilt, backfill_id, version, run_id)
    work = commit(change)
    assert work is not None  # noqa: S101 - `stage_on` always stages
    return work.staged, change.files


@dataclass
class _Replacement(DatasetChange):
    """Swaps the rebuilt files of a day for those in the plan."""

    plan: DayPlan
    rebuilt: Rebuilt
    backfill_id: str
    version: int
    run_id: str | None
    files: tuple[CandidateFile, ...] = ()
    """The rebuilt files as the table has them."""

    def stage_on(self, table: Table) -> Staged:
        before = self.plan.files
        if not before.keys() <= day_files(table, self.plan.day).keys():
            raise Overtaken
        self.files = candidate_files.fit_schema(self.rebuilt.files, table.schema())
        summary = {BACKFILL_PROPERTY: self.backfill_id}
        return iceberg.stage_replace(table, before.values(), parquet_files.data_files(self.files), summary)

    def write(self, connection: postgres.Connection, work: DatasetWork) -> None:
        plan, landing, dataset, staged = self.plan, self.rebuilt.landing, self.dataset, work.staged
        size = sum(file.bytes for file in self.files)
        values = {
            "tenant": self.tenant.tenant_id,
            "backfill": self.backfill_id,
            "dataset": dataset.dataset_id,
            "slug": dataset.slug,
            "day": plan.day,
            "version": self.version,
            "rows": self.rebuilt.rows + len(landing),
            "letters": len(landing),
            "before": len(plan.files),
            "after": len(self.files),
            "bytes": size,
            "snapshot": staged.snapshot_id,
            "run": self.run_id,
        }
        files = {dataset.dataset_id: self.files}
        if state_keys.land(connection, self.tenant.tenant_id, files, rows_are_new=False) is not None:
            raise Overtaken
        window_buckets.changed(connection, dataset.dataset_id, [plan.day])
        connection.execute(RECORD, values)
        if landing:
            _land_letters(connection, plan, landing, values)
        landed = ledger.Landing(
            batch_id=self.backfill_id,
            tenant_id=self.tenant.tenant_id,
            dataset_id=dataset.dataset_id,
            slug=dataset.slug,
            day=plan.day,
            rows=len(landing),
            duplicates=0,
            bytes=size,
            files=len(self.files),
            snapshot_id=staged.snapshot_id,
            metadata_location=staged.new,
        )
        ledger.land(connection, [landed])


def _land_letters(
    connection: postgres.Connection, plan: DayPlan, landing: Sequence[Landing], values: Mapping[str, Any]
) -> None:
    """Turn dead letters into landed events: claim their ids, resolve them, and update the ledger."""
    tenant_id, dataset = plan.tenant.tenant_id, plan.dataset
    places = [(letter.partition, letter.offset) for letter in landing]
    ids = Digests.of([letter.event_id for letter in landing], dataset.claim_seed).run()
    at = np.array([parquet_files.position(*place) for place in places], np.int64)
    # The task that looked the ids up did not report the runs it saw, so all runs count as newer.
    added = claim_runs.fresh(connection, [], ids, at)
    values = {**values, "partitions": [p for p, _ in places], "offsets": [offset for _, offset in places]}
    if (
        len(ids) != len(landing)
        or not claim_runs.add(connection, tenant_id, dataset.dataset_id, added)
        or connection.execute(RESOLVE, values).rowcount != len(landing)
    ):
        raise Overtaken
    ledger.dead_letters_landed(connection, tenant_id, places)
    ledger.use(connection, tenant_id, EVENTS, len(landing), 0)
