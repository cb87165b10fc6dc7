"""Rows: data files that hold the person's events are rewritten without them, in one commit.

This process searches the files; Spark tasks rewrite them by row positions, so the value never leaves this
process. The commit records the erased offsets, subtracts the rows from the ledger's days, deletes summaries
computed from them, and turns rows that a backfill landed from dead letters into erased dead letters.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from pulse_pipelines.domain.event import INT64
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import heads, index_entries
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.accounting import Cleaned, Places, account, result
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.states import state_keys, window_buckets
from pulse_pipelines.tables import commit, parquet_files
from pulse_pipelines.tables.iceberg_schema import UPDATED
from pulse_pipelines.tables.rewrite_file import BATCH_ROWS, Rewrite, Rewriter
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import Staged, readable
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

STEP = "rows"
ERASURE_PROPERTY = "pulse.erasure-id"
AT_A_TIME = 4
"""Files read in parallel."""


def erase(rewriter: Rewriter, tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Remove the matching rows from the table. The caller holds the table's lease.

    Args:
        rewriter: rewrites data files.

    Raises:
        Terminal: the table is gone, belongs to another dataset, or has delete files of another engine.
        Transient, OSError, psycopg.OperationalError, PySparkException: nothing was changed.
    """
    known: dict[str, Cleaned] = {}
    hit: list[Cleaned] = []
    following: list[int] = []

    def stage(table: Table) -> Staged | None:
        nonlocal hit, following
        found = matching(table, subject)
        fresh = [(file, places) for file, places in found if file.file_path not in known]
        known.update(_cleaned(rewriter, fresh, table.schema().model_dump_json()))
        hit = [known[file.file_path] for file, _ in found]
        if not hit:
            return None
        following = _following(table, subject) if subject.dataset.of_entities else []
        added = [cleaned.after for cleaned in hit if cleaned.after is not None]
        summary = {ERASURE_PROPERTY: erasure.erasure_id}
        return iceberg.stage_replace(table, [cleaned.before for cleaned in hit], added, summary)

    before = erasure.steps.get(STEP)

    def before_swap(connection: postgres.Connection) -> None:
        locks.wait(connection, Lock.SUMMARIES, subject.dataset.dataset_id)

    def write(connection: postgres.Connection, staged: Staged) -> None:
        heads.begin_anew(connection, subject.dataset.dataset_id)
        erased = [number for each in hit for number in each.versions]
        index_entries.forget(connection, subject.dataset.dataset_id, erased, following)
        places = [place for each in hit for place in each.places]
        states = state_keys.forget(connection, subject.dataset.dataset_id, places)
        window_buckets.changed(connection, subject.dataset.dataset_id, {each.day for each in hit})
        summaries = account(connection, tenant, subject, erasure, hit, staged)
        done = result(before, hit, staged.snapshot_id, summaries, states)
        record.done(connection, tenant, erasure.erasure_id, STEP, done)

    if commit.commit_dataset(tenant, subject.dataset, stage, before=before_swap, write=write) is None:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            record.done(connection, tenant, erasure.erasure_id, STEP, result(before, [], None, 0, 0))


def matching(table: Table, subject: Subject) -> list[tuple[DataFile, Places]]:
    """Data files of the current snapshot with matching rows, and the positions of their events.

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
    return [(file, place) for file, place in zip(candidates, places, strict=True) if place]


def search(path: str, subject: Subject) -> list[tuple[int, int]]:
    """Positions of the events whose rows match in a data file.

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


def _cleaned(
    rewriter: Rewriter, found: Sequence[tuple[DataFile, Places]], table_schema: str
) -> dict[str, Cleaned]:
    """Rewritten files without the matching rows, by the path they replace; None where no row is left."""
    written = rewriter(
        [
            Rewrite(
                file.file_path,
                file.file_size_in_bytes,
                table_schema,
                frozenset(parquet_files.position(*place) for place in places),
            )
            for file, places in found
            if len(places) < file.record_count
        ]
    )
    cleaned = {}
    for file, places in found:
        again = written.get(file.file_path)
        after = again.instead_of(file) if again else None
        cleaned[file.file_path] = Cleaned(file, after, places, _versions(file.file_path, places))
    return cleaned


def _following(table: Table, subject: Subject) -> list[int]:
    """`_updated` of the first version of the entity that the erasure does not cover."""
    any_place = dict.fromkeys(subject.covers, INT64[-1])
    later = [
        number
        for file, places in matching(table, subject.covering(any_place))
        for number in _versions(file.file_path, [place for place in places if not subject.covered(*place)])
    ]
    return [min(later)] if later else []


def _versions(path: str, places: Places) -> Sequence[int]:
    """`_updated` of the events of a data file, if it is of entities."""
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        parquet = pq.ParquetFile(content)
        if UPDATED not in parquet.schema_arrow.names:
            return ()
        rows = parquet.read(["_kafka_partition", "_offset", UPDATED])
    wanted = pa.array([parquet_files.position(*place) for place in places], pa.int64())
    found: list[int] = (
        rows.filter(pc.is_in(parquet_files.positions(rows), wanted)).column(UPDATED).to_pylist()
    )
    return found
