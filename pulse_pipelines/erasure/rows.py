"""Rows: data files that hold the person's events are written again without them, in one commit.

That commit says which offsets were erased, takes the rows off the ledger's days and stops serving what was
computed from them; backfilled dead letters among them are dead letters again, erased ones.
"""

from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.accounting import Cleaned, Places, account, result
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.tables import arrow_columns, commit, file_metrics, parquet_files
from pulse_pipelines.tables.rewrite_file import BATCH_ROWS, fitted
from pulse_resources import iceberg, locks, object_store, postgres, readable
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import Staged
from pulse_resources.locks import Lock

STEP = "rows"
ERASURE_PROPERTY = "pulse.erasure-id"
AT_A_TIME = 4
"""Files that are read, or written, side by side."""


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

    before = erasure.steps.get(STEP)

    def before_swap(connection: postgres.Connection) -> None:
        locks.wait(connection, Lock.SUMMARIES, subject.dataset.dataset_id)

    def write(connection: postgres.Connection, staged: Staged) -> None:
        summaries = account(connection, tenant, subject, erasure, hit, staged)
        done = result(before, hit, staged.snapshot_id, summaries)
        record.done(connection, tenant, erasure.erasure_id, STEP, done)

    if commit.commit_dataset(tenant, subject.dataset, stage, before=before_swap, write=write) is None:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            record.done(connection, tenant, erasure.erasure_id, STEP, result(before, [], None, 0))


def matching(table: Table, subject: Subject) -> list[tuple[DataFile, Places]]:
    """Data files of the current snapshot with rows that match, and where their events were.

    Raises:
        Terminal: the snapshot has delete files.
        OSError: the object store failed.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    readable.check_snapshot(table)
    if any(manifest.content is not ManifestContent.DATA for manifest in snapshot.manifests(table.io)):
        raise Terminal(
            "another engine wrote delete files into the table",
            fix="Compact it (pulse upkeep), then erase again",
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
    store, arrow_schema = object_store.file_system(), arrow_columns.arrow_schema(schema)
    path = f"{before.file_path.removesuffix('.parquet')}-{parquet_files.token()}.parquet"
    collected: list[pq.FileMetaData] = []
    with (
        store.open_input_file(object_store.key(before.file_path)) as content,
        store.open_output_stream(object_store.key(path), compression=None) as sink,
    ):
        with parquet_files.parquet_writer(sink, arrow_schema, left, collected) as writer:
            for batch in pq.ParquetFile(content).iter_batches(BATCH_ROWS):
                kept = batch.filter(pc.invert(subject.mask(batch)))
                if kept.num_rows:
                    writer.write_table(fitted(kept, arrow_schema))
        size = sink.tell()
    day = Cleaned(before, None, places).day
    after = file_metrics.data_file(path, day, left, size, file_metrics.of_footer(schema, collected[0]))
    return Cleaned(before, after, places)
