"""Rows: data files that hold the person's events are written again without them, in one commit.

That commit says which offsets were erased, takes the rows off the ledger's days and stops serving what was
computed from them; backfilled dead letters among them are dead letters again, erased ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg.types.multirange import Multirange
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from pulse_pipelines.curated.commit import forget
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.stages import columns, files, metrics, rewrite
from pulse_pipelines.stages.ledger import runs
from pulse_pipelines.stages.recast import BATCH_ROWS, fitted
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import Staged

STEP = "rows"
ERASURE_PROPERTY = "pulse.erasure-id"
AT_A_TIME = 4
"""Files that are read, or written, side by side."""

ERASED = """
INSERT INTO erased_offsets (tenant_id, erasure_id, partition, offsets) VALUES (%s, %s, %s, %s)
"""
LANDING = """
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files,
    snapshot_id, metadata_location)
VALUES (%s, %s, %s, %s, %s, %s, 0, %s, %s, %s, %s)
"""
LANDED_LETTERS = """
UPDATE dead_letters l SET resolution = 'erased', resolved_at = now(), landed_by = NULL, payload = '',
    event_id = NULL, pointer = NULL, detail = 'erased'
FROM unnest(%s::int[], %s::bigint[]) AS found (partition, event_offset)
WHERE l.tenant_id = %s AND l.partition = found.partition AND l.event_offset = found.event_offset
  AND l.resolution = 'landed' RETURNING l.partition, l.event_offset
"""
# The backfill that landed it had moved it from one count to the other; each is in the last range that begins
# at it or before it.
NOT_LANDED_RANGE = """
UPDATE ingest_ranges SET landed = landed - 1, dead_letters = dead_letters + 1
WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND start_offset = (
    SELECT max(start_offset) FROM ingest_ranges
    WHERE tenant_id = %(tenant)s AND partition = %(partition)s AND start_offset <= %(offset)s)
"""
NOT_LANDED_POSITION = """
UPDATE ingest_positions SET landed = landed - 1, dead_letters = dead_letters + 1
WHERE tenant_id = %(tenant)s AND partition = %(partition)s
"""

Places = Sequence[tuple[int, int]]
"""Partition and offset of events."""


@dataclass(frozen=True)
class Cleaned:
    """A data file that held events of the person, and what takes its place."""

    before: DataFile
    after: DataFile | None
    places: Places

    @property
    def day(self) -> date:
        return date.fromordinal(metrics.EPOCH.toordinal() + self.before.partition[0])

    @property
    def bytes(self) -> int:
        """Bytes by which the table grew; usually it shrank."""
        after = self.after.file_size_in_bytes if self.after else 0
        return after - self.before.file_size_in_bytes


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Remove the matching rows from the table. The caller holds the table's lease.

    Raises:
        Terminal: the table is gone, another dataset's, or has delete files of another engine.
        Transient, OSError, psycopg.OperationalError: nothing was changed.
    """
    known: dict[str, Cleaned] = {}
    hit: list[Cleaned] = []

    def stage(table: Table) -> Staged | None:
        nonlocal hit
        found = matching(table, subject)
        fresh = [(file, places) for file, places in found if file.file_path not in known]
        schema = table.schema().model_dump_json()
        with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="erase") as pool:
            for cleaned in pool.map(lambda each: _clean(each[0], each[1], subject, schema), fresh):
                known[cleaned.before.file_path] = cleaned
        hit = [known[file.file_path] for file, _ in found]
        if not hit:
            return None
        added = [cleaned.after for cleaned in hit if cleaned.after is not None]
        summary = {ERASURE_PROPERTY: erasure.erasure_id}
        return iceberg.stage_replace(table, [cleaned.before for cleaned in hit], added, summary)

    def write(connection: postgres.Connection, staged: Staged) -> None:
        _account(connection, tenant, subject, erasure.erasure_id, hit, staged)

    if rewrite.commit(tenant, subject.dataset, stage, write) is None:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            record.done(connection, tenant, erasure.erasure_id, STEP, _result([], None, 0))


def matching(table: Table, subject: Subject) -> list[tuple[DataFile, Places]]:
    """Data files of the current snapshot with rows that match, and where their events were.

    Raises:
        Terminal: the snapshot has delete files.
        OSError: the object store failed.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    if any(manifest.content is not ManifestContent.DATA for manifest in snapshot.manifests(table.io)):
        raise Terminal(
            "another engine wrote delete files into the table",
            fix="Compact it (pulse upkeep run), then erase again",
            table=".".join(table.name()),
        )
    condition = subject.filter()
    scan = table.scan() if condition is None else table.scan(row_filter=condition)
    candidates = [task.file for task in scan.plan_files()]
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="search") as pool:
        places = list(pool.map(lambda file: search(file.file_path, subject), candidates))
    return [(file, found) for file, found in zip(candidates, places, strict=True) if found]


def search(path: str, subject: Subject) -> list[tuple[int, int]]:
    """Where the events were whose rows match in a data file.

    Raises:
        OSError: the object store failed; FileNotFoundError: the file is gone.
    """
    found: list[tuple[int, int]] = []
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        parquet = pq.ParquetFile(content)
        present = [name for name in subject.columns if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(BATCH_ROWS, columns=present):
            rows = batch.filter(subject.mask(batch))
            found.extend(
                zip(
                    rows.column("_kafka_partition").to_pylist(),
                    rows.column("_offset").to_pylist(),
                    strict=True,
                )
            )
    return found


def _clean(before: DataFile, places: Places, subject: Subject, schema: str) -> Cleaned:
    """Write a file again without the rows that match; holds a few thousand rows at a time."""
    left = before.record_count - len(places)
    if not left:
        return Cleaned(before, None, places)
    store, arrow_schema = object_store.file_system(), columns.arrow_schema(schema)
    path = f"{before.file_path.removesuffix('.parquet')}-{files.token()}.parquet"
    collected: list[pq.FileMetaData] = []
    with (
        store.open_input_file(object_store.key(before.file_path)) as content,
        store.open_output_stream(object_store.key(path), compression=None) as sink,
    ):
        with files.parquet_writer(sink, arrow_schema, left, collected) as writer:
            for batch in pq.ParquetFile(content).iter_batches(BATCH_ROWS):
                kept = batch.filter(pc.invert(subject.mask(batch)))
                if kept.num_rows:
                    writer.write_table(fitted(kept, arrow_schema))
        size = sink.tell()
    day = Cleaned(before, None, places).day
    after = metrics.data_file(path, day, left, size, metrics.of_footer(schema, collected[0]))
    return Cleaned(before, after, places)


def _account(
    connection: postgres.Connection,
    tenant: Tenant,
    subject: Subject,
    erasure_id: str,
    hit: Sequence[Cleaned],
    staged: Staged,
) -> None:
    places = [place for cleaned in hit for place in cleaned.places]
    letters = _letters_again(connection, tenant, places)
    of_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(set(places) - letters):
        of_partition[partition].append(offset)
    for partition, offsets in of_partition.items():
        connection.execute(ERASED, [tenant.tenant_id, erasure_id, partition, Multirange(runs(offsets))])
    of_day: dict[date, list[Cleaned]] = defaultdict(list)
    for cleaned in hit:
        of_day[cleaned.day].append(cleaned)
    dataset = subject.dataset
    for day, part in sorted(of_day.items()):
        rows = -sum(len(cleaned.places) for cleaned in part)
        files_more = -sum(cleaned.after is None for cleaned in part)
        connection.execute(
            LANDING,
            [
                *(erasure_id, tenant.tenant_id, dataset.dataset_id, dataset.slug, day, rows),
                *(sum(cleaned.bytes for cleaned in part), files_more, staged.snapshot_id, staged.new),
            ],
        )
    summaries = forget(connection, dataset.dataset_id, sorted(of_day))
    record.done(connection, tenant, erasure_id, STEP, _result(hit, staged.snapshot_id, summaries))


def _letters_again(connection: postgres.Connection, tenant: Tenant, places: Places) -> set[tuple[int, int]]:
    """Rows that a backfill had made of dead letters are dead letters again, without their bytes."""
    partitions, offsets = [p for p, _ in places], [o for _, o in places]
    found = connection.execute(LANDED_LETTERS, [partitions, offsets, tenant.tenant_id]).fetchall()
    letters = {(partition, offset) for partition, offset in found}
    for partition, offset in sorted(letters):
        values = {"tenant": tenant.tenant_id, "partition": partition, "offset": offset}
        connection.execute(NOT_LANDED_RANGE, values)
        connection.execute(NOT_LANDED_POSITION, values)
    return letters


def _result(hit: Iterable[Cleaned], snapshot_id: int | None, summaries: int) -> dict[str, Any]:
    days: dict[str, int] = defaultdict(int)
    objects = []
    for cleaned in hit:
        days[str(cleaned.day)] += len(cleaned.places)
        after = cleaned.after.file_path if cleaned.after else None
        objects.append({"removed": cleaned.before.file_path, "instead": after, "rows": len(cleaned.places)})
    return {
        "rows": sum(days.values()),
        "days": days,
        "files": objects,
        "snapshot_id": snapshot_id,
        "summaries": summaries,
    }
