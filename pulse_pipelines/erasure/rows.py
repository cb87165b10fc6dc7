"""Rows: data files that hold the person's events are rewritten without them, in one commit.

This process searches the files; Spark tasks rewrite them by row positions, so the value never leaves this
process. The commit records the erased offsets, subtracts the rows from the ledger's days, deletes summaries
computed from them, and turns rows that a backfill landed from dead letters into erased dead letters.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table

from pulse_pipelines.domain.event import INT64
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import heads, index_entries
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.accounting import CleanedFile, Places, account, result
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.states import state_keys, window_buckets
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.commit import DatasetChange, DatasetWork, commit
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
    change = _RowErasure(tenant, subject.dataset, rewriter, subject, erasure)
    if commit(change) is None:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            change.finish(connection, snapshot_id=None, summaries=0, states=0)


@dataclass
class _RowErasure(DatasetChange):
    rewriter: Rewriter
    subject: Subject
    erasure: Erasure
    cleaned: dict[str, CleanedFile] = field(default_factory=dict)
    """Rewritten files by the path of the original; those of an earlier try, too."""
    hit: list[CleanedFile] = field(default_factory=list)
    """Those that the staged commit replaces."""
    following: list[int] = field(default_factory=list)

    def stage_on(self, table: Table) -> Staged | None:
        matches = matching(table, self.subject)
        fresh = [(file, places) for file, places in matches if file.file_path not in self.cleaned]
        self.cleaned.update(_cleaned(self.rewriter, fresh, table.schema().model_dump_json()))
        self.hit = [self.cleaned[file.file_path] for file, _ in matches]
        if not self.hit:
            return None
        self.following = _following(table, self.subject) if self.dataset.of_entities else []
        added = [cleaned.after for cleaned in self.hit if cleaned.after is not None]
        summary = {ERASURE_PROPERTY: self.erasure.erasure_id}
        return iceberg.stage_replace(table, [cleaned.before for cleaned in self.hit], added, summary)

    def lock(self, connection: postgres.Connection, work: DatasetWork) -> None:
        locks.wait(connection, Lock.SUMMARIES, self.dataset.dataset_id)

    def write(self, connection: postgres.Connection, work: DatasetWork) -> None:
        dataset_id, hit = self.dataset.dataset_id, self.hit
        heads.start_generation(connection, dataset_id)
        versions = [number for cleaned in hit for number in cleaned.versions]
        index_entries.forget(connection, dataset_id, versions, self.following)
        places = [place for cleaned in hit for place in cleaned.places]
        states = state_keys.forget(connection, dataset_id, places)
        window_buckets.changed(connection, dataset_id, {cleaned.day for cleaned in hit})
        summaries = account(connection, self.tenant, self.subject, self.erasure, hit, work.staged)
        self.finish(connection, snapshot_id=work.staged.snapshot_id, summaries=summaries, states=states)

    def finish(
        self, connection: postgres.Connection, *, snapshot_id: int | None, summaries: int, states: int
    ) -> None:
        """Record the erasure's step as done."""
        before = self.erasure.steps.get(STEP)
        outcome = result(before, self.hit, snapshot_id, summaries, states)
        record.done(connection, self.tenant, self.erasure.erasure_id, STEP, outcome)


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
    positions: list[tuple[int, int]] = []
    with object_store.file_system().open_input_file(object_store.key(path)) as content:
        parquet = pq.ParquetFile(content)
        present = [name for name in subject.columns if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(BATCH_ROWS, columns=present):
            rows = batch.filter(subject.mask(batch))
            positions.extend(
                zip(
                    rows.column("_kafka_partition").to_pylist(),
                    rows.column("_offset").to_pylist(),
                    strict=True,
                )
            )
    return positions


def _cleaned(
    rewriter: Rewriter, matches: Sequence[tuple[DataFile, Places]], table_schema: str
) -> dict[str, CleanedFile]:
    """Rewritten files without the matching rows, by the path they replace; None where no row is left."""
    written = rewriter(
        [
            Rewrite(
                file.file_path,
                file.file_size_in_bytes,
                table_schema,
                frozenset(parquet_files.position(*place) for place in places),
            )
            for file, places in matches
            if len(places) < file.record_count
        ]
    )
    cleaned = {}
    for file, places in matches:
        again = written.get(file.file_path)
        after = again.instead_of(file) if again else None
        cleaned[file.file_path] = CleanedFile(file, after, places, _versions(file.file_path, places))
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
    selected = pa.array([parquet_files.position(*place) for place in places], pa.int64())
    versions: list[int] = (
        rows.filter(pc.is_in(parquet_files.positions(rows), selected)).column(UPDATED).to_pylist()
    )
    return versions
