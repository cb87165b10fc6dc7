"""The plan of a backfill: a consistent read of the day's raw objects, ledger and data files.

Raw objects, landings and the table's pointer are written in one transaction, and are read here in one
snapshot: the table's files of the day hold exactly the rows that these raw objects give.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from psycopg.types.multirange import Multirange
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import dataset_rows, parquet_files
from pulse_pipelines.tables.live_table import of_day
from pulse_resources import iceberg, postgres
from pulse_resources.errors import NotFound, Terminal
from pulse_resources.iceberg import readable

# An earlier dataset may have had the same slug: only events that landed in this one count.
SOURCES = """
SELECT r.path, r.batch_id, r.start, r.bytes FROM raw_objects r
WHERE r.tenant_id = %(tenant)s AND r.slug = %(slug)s AND r.day = %(day)s AND r.removed_at IS NULL
  AND EXISTS (
    SELECT 1 FROM landings l
    WHERE l.batch_id = r.batch_id AND l.dataset_id = %(dataset)s AND l.day = %(day)s)
ORDER BY r.path, r.start
"""
ROWS = """
SELECT coalesce(sum(rows), 0)::bigint FROM landings
WHERE tenant_id = %(tenant)s AND dataset_id = %(dataset)s AND day = %(day)s
"""
COPIES = """
SELECT batch_id, partition, duplicate_offsets FROM ingest_ranges
WHERE tenant_id = %(tenant)s AND batch_id = ANY(%(batches)s) AND NOT isempty(duplicate_offsets)
"""
DEAD_LETTERS = """
SELECT batch_id, partition, array_agg(event_offset) FROM dead_letters
WHERE tenant_id = %(tenant)s AND batch_id = ANY(%(batches)s) GROUP BY batch_id, partition
"""
# An interrupted erasure may have left erased lines in the raw zone.
ERASED = """
SELECT r.batch_id, e.partition, e.offsets * int8multirange(int8range(r.start_offset, r.end_offset))
FROM ingest_ranges r JOIN erased_offsets e USING (tenant_id, partition)
WHERE r.tenant_id = %(tenant)s AND r.batch_id = ANY(%(batches)s)
  AND e.offsets && int8range(r.start_offset, r.end_offset)
"""
LETTERS = """
SELECT EXISTS (
    SELECT 1 FROM dead_letters
    WHERE tenant_id = %(tenant)s AND dataset = %(slug)s AND (resolution IS NULL OR resolution = 'landed'))
"""


@dataclass(frozen=True)
class Source:
    """The part of a raw object with events of the day."""

    path: str
    batch_id: str
    start: int
    bytes: int


@dataclass(frozen=True)
class DayPlan:
    """A day of a dataset: its current files, and the raw events to rebuild it from."""

    tenant: Tenant
    dataset: Dataset
    day: date
    rows: int
    """Rows that landed by the ledger: the rebuild must give the same number."""
    sources: tuple[Source, ...]
    unlanded: Mapping[str, frozenset[int]]
    """By batch: positions (see `parquet_files.position`) of events without a row: duplicates, dead letters,
    and erased events."""
    letters: bool
    """Whether the dataset has dead letters, of any day, that may become or be rows of this one."""
    files: Mapping[str, DataFile]
    """The table's data files of the day, by path."""


def plan_day(tenant: Tenant, slug: str, day: date) -> DayPlan:
    """Read the plan of a day in one snapshot of Postgres.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: its table is gone, or belongs to another dataset.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        parts = list(
            dataset_rows.read(connection, "d.tenant_id = %s AND d.slug = %s", [tenant.tenant_id, slug])
        )
        if not parts:
            raise NotFound("no such dataset", tenant=tenant.slug, dataset=slug)
        (dataset,) = parts
        location = iceberg.current_location(connection, (tenant.namespace, slug))
        where = {
            "tenant": tenant.tenant_id,
            "dataset": dataset.dataset_id,
            "slug": slug,
            "day": day,
        }
        sources = tuple(postgres.select(connection, Source, SOURCES, where))
        ((rows,),) = connection.execute(ROWS, where).fetchall()
        ((letters,),) = connection.execute(LETTERS, where).fetchall()
        batches = list({source.batch_id for source in sources})
        unlanded = _unlanded(connection, where | {"batches": batches})
    with readable.damage_explained(location):
        table = iceberg.load_table((tenant.namespace, slug), location)
        in_table = day_files(table, day)
    if table.properties.get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
        raise Terminal("the table is not this dataset's", tenant=tenant.slug, dataset=slug)
    return DayPlan(tenant, dataset, day, rows, sources, unlanded, letters, in_table)


def _unlanded(connection: postgres.Connection, where: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    by_batch: dict[str, set[int]] = defaultdict(set)
    spans: Multirange[int]
    for query in (COPIES, ERASED):
        for batch, partition, spans in connection.execute(query, where):
            for span in spans:
                offsets = range(span.lower or 0, span.upper or 0)
                by_batch[batch].update(parquet_files.position(partition, offset) for offset in offsets)
    for batch, partition, offsets in connection.execute(DEAD_LETTERS, where):
        by_batch[batch].update(parquet_files.position(partition, offset) for offset in offsets)
    return {batch: frozenset(positions) for batch, positions in by_batch.items()}


def day_files(table: Table, day: date) -> dict[str, DataFile]:
    """The data files of the day in the table's current snapshot, by path."""
    return {task.file.file_path: task.file for task in table.scan(row_filter=of_day(day)).plan_files()}
