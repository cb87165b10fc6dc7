"""Replace: one commit swaps the rebuilt day into the table and tells the ledger which letters landed."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.table import Table

from pulse_pipelines.backfill.letters import Landing
from pulse_pipelines.backfill.plan import DayPlan, day_files
from pulse_pipelines.backfill.rebuild import Rebuilt
from pulse_pipelines.stages import land, rewrite
from pulse_pipelines.stages.handles import CandidateFile
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import Staged

BACKFILL_PROPERTY = "pulse.backfill-id"

RECORD = """
INSERT INTO backfills (tenant_id, backfill_id, dataset_id, slug, day, schema_version, rows, dead_letters,
    files_before, files_after, bytes, snapshot_id, run_id)
VALUES (%(tenant)s, %(backfill)s, %(dataset)s, %(slug)s, %(day)s, %(version)s, %(rows)s, %(letters)s,
    %(before)s, %(after)s, %(bytes)s, %(snapshot)s, %(run)s)
"""
LANDING = """
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files,
    snapshot_id, metadata_location)
VALUES (%(backfill)s, %(tenant)s, %(dataset)s, %(slug)s, %(day)s, %(letters)s, 0, %(bytes)s, %(after)s,
    %(snapshot)s, %(location)s)
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
# Each letter is in the last range that begins at it or before it.
RANGES = """
UPDATE ingest_ranges r SET landed = r.landed + n, dead_letters = r.dead_letters - n
FROM (
    SELECT l.partition, o.start_offset, count(*) AS n
    FROM unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS l (partition, event_offset)
    CROSS JOIN LATERAL (
        SELECT start_offset FROM ingest_ranges i
        WHERE i.tenant_id = %(tenant)s AND i.partition = l.partition AND i.start_offset <= l.event_offset
        ORDER BY start_offset DESC LIMIT 1) o
    GROUP BY 1, 2
) letters
WHERE r.tenant_id = %(tenant)s AND r.partition = letters.partition AND r.start_offset = letters.start_offset
"""
POSITION = """
UPDATE ingest_positions SET landed = landed + %(count)s, dead_letters = dead_letters - %(count)s
WHERE tenant_id = %(tenant)s AND partition = %(partition)s
"""
USAGE = """
INSERT INTO usage AS u (tenant_id, month, records, bytes)
VALUES (%(tenant)s, date_trunc('month', now() AT TIME ZONE 'UTC')::date, %(letters)s, 0)
ON CONFLICT (tenant_id, kind, month) DO UPDATE SET records = u.records + EXCLUDED.records
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
        Transient, Terminal, OSError, psycopg.Error: as `rewrite.commit`; nothing was changed.
    """
    added: tuple[CandidateFile, ...] = rebuilt.files

    def stage(table: Table) -> Staged:
        nonlocal added
        if not plan.files.keys() <= day_files(table, plan.day).keys():
            raise Overtaken
        added = land.fitted(added, table.schema())
        return iceberg.stage_replace(
            table, plan.files.values(), land.data_files(added), {BACKFILL_PROPERTY: backfill_id}
        )

    def write(connection: postgres.Connection, staged: Staged) -> None:
        values = {
            "tenant": plan.tenant.tenant_id,
            "backfill": backfill_id,
            "dataset": plan.dataset.dataset_id,
            "slug": plan.dataset.slug,
            "day": plan.day,
            "version": version,
            "rows": rebuilt.rows + len(rebuilt.landing),
            "letters": len(rebuilt.landing),
            "before": len(plan.files),
            "after": len(added),
            "bytes": sum(file.bytes for file in added),
            "snapshot": staged.snapshot_id,
            "location": staged.new,
            "run": run_id,
        }
        connection.execute(RECORD, values)
        if rebuilt.landing:
            _land_letters(connection, rebuilt.landing, values)
        connection.execute(LANDING, values)

    committed = rewrite.commit(plan.tenant, plan.dataset, stage, write)
    assert committed is not None  # noqa: S101 - `stage` always stages
    return committed, added


def _land_letters(
    connection: postgres.Connection, landing: Sequence[Landing], values: Mapping[str, Any]
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
    connection.execute(RANGES, values)
    for partition in sorted(set(values["partitions"])):  # in the order of settle, so no two deadlock
        count = values["partitions"].count(partition)
        connection.execute(POSITION, {**values, "partition": partition, "count": count})
    connection.execute(USAGE, values)
