"""Replace: one commit swaps the rebuilt day into the table and tells the ledger which letters landed."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.table import Table

from pulse_pipelines.backfill.letters import Landing
from pulse_pipelines.backfill.plan import DayPlan, day_files
from pulse_pipelines.backfill.rebuild import Rebuilt
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import commit, ledger, parquet_files, rewrite_file
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
CLAIM = """
INSERT INTO processed_event_ids (tenant_id, dataset_id, partition, event_offset, event_id)
SELECT %(tenant)s, %(dataset)s, * FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[], %(ids)s::text[])
ON CONFLICT DO NOTHING
"""
OWNED = """
SELECT count(*) FROM processed_event_ids c
JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[], %(ids)s::text[])
    AS l (partition, event_offset, event_id) USING (partition, event_offset, event_id)
WHERE c.dataset_id = %(dataset)s
"""
RESOLVE = """
UPDATE dead_letters l SET resolution = 'landed', resolved_at = now(), landed_by = %(backfill)s
FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS found (partition, event_offset)
WHERE l.tenant_id = %(tenant)s AND l.partition = found.partition AND l.event_offset = found.event_offset
  AND l.resolution IS NULL
"""


class Overtaken(Exception):  # noqa: N818 - what was planned is not so any more: begin again
    """Another writer replaced a file of the day, or took an event id or a letter, since the plan."""


def replace(
    plan: DayPlan, rebuilt: Rebuilt, backfill_id: str, version: int, run_id: str | None
) -> tuple[Staged, tuple[CandidateFile, ...]]:
    """Swap the rebuilt files for those that the plan found; files that landed since then stay.

    Returns:
        The commit, and the files as the table has them.

    Raises:
        Overtaken: nothing was changed.
        Transient, Terminal, OSError, psycopg.Error: as `commit.commit_dataset`; nothing was changed.
    """
    added: tuple[CandidateFile, ...] = rebuilt.files

    def stage(table: Table) -> Staged:
        nonlocal added
        if not plan.files.keys() <= day_files(table, plan.day).keys():
            raise Overtaken
        added = rewrite_file.fit_candidates(added, table.schema())
        return iceberg.stage_replace(
            table, plan.files.values(), parquet_files.data_files(added), {BACKFILL_PROPERTY: backfill_id}
        )

    def write(connection: postgres.Connection, staged: Staged) -> None:
        landing, dataset = rebuilt.landing, plan.dataset
        size = sum(file.bytes for file in added)
        values = {
            "tenant": plan.tenant.tenant_id,
            "backfill": backfill_id,
            "dataset": dataset.dataset_id,
            "slug": dataset.slug,
            "day": plan.day,
            "version": version,
            "rows": rebuilt.rows + len(landing),
            "letters": len(landing),
            "before": len(plan.files),
            "after": len(added),
            "bytes": size,
            "snapshot": staged.snapshot_id,
            "run": run_id,
        }
        connection.execute(RECORD, values)
        if landing:
            _land_letters(connection, plan.tenant, landing, values)
        landed = ledger.Landing(
            *(backfill_id, plan.tenant.tenant_id, dataset.dataset_id, dataset.slug, plan.day, len(landing)),
            *(0, size, len(added), staged.snapshot_id, staged.new),
        )
        ledger.land(connection, [landed])

    committed = commit.commit_dataset(plan.tenant, plan.dataset, stage, write=write)
    assert committed is not None  # noqa: S101 - `stage` always stages
    return committed, added


def _land_letters(
    connection: postgres.Connection, tenant: Tenant, landing: Sequence[Landing], values: Mapping[str, Any]
) -> None:
    """Dead letters become rows: their claims, their ranges and their positions say so."""
    values = {
        **values,
        "partitions": [letter.partition for letter in landing],
        "offsets": [letter.offset for letter in landing],
        "ids": [letter.event_id for letter in landing],
    }
    connection.execute(CLAIM, values)
    owned = connection.execute(OWNED, values).fetchone()
    if owned != (len(landing),) or connection.execute(RESOLVE, values).rowcount != len(landing):
        raise Overtaken
    places = [(letter.partition, letter.offset) for letter in landing]
    ledger.dead_letters_landed(connection, tenant.tenant_id, places)
    ledger.use(connection, tenant.tenant_id, len(landing), 0)
