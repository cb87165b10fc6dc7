"""Erasure from one own table, in this process: search, rewrite, forget the history, remove files.

One commit replaces the files with such rows and drops every earlier snapshot; large ones are replaced in
parts before it. All of the snapshot that it replaces was searched, so whatever engines commit before it is
covered, and what they commit after it is not. The files that the history had are written down before the
commit: a process that dies after it leaves them to the next.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import pyarrow as pa
from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFile

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.own import noted_files
from pulse_pipelines.erasure.own.subject import Names, SearchedValue, names_of
from pulse_pipelines.lake import table_state
from pulse_pipelines.lake.catalog import ROLE, OwnTable
from pulse_pipelines.lake.errors import NoSuchTable
from pulse_pipelines.lake.table_state import NotRewritten, TableState
from pulse_pipelines.tables import foreign_files, orphan_files
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.foreign_files import Rewritten
from pulse_pipelines.tables.reachable_files import ReachableFiles, plain
from pulse_pipelines.tables.rewrite_file import rows_at_a_time
from pulse_resources import object_store
from pulse_resources.errors import PulseError, Transient
from pulse_resources.iceberg import table_metadata
from pulse_resources.process.faults import fail_point

PROPERTY = "pulse.erasure-id"
DEAD = timedelta(hours=1)
"""Age of a file of Pulse's own that no process is still about to commit: their time is limited."""
PART_BYTES = 256 * 1024 * 1024
"""Size of the files that one commit replaces, about."""
UNREADABLE = (*table_state.UNREADABLE, pa.ArrowException, ValidationException)
"""Exceptions that mean that a table's files cannot be searched or written."""


@dataclass(frozen=True)
class _Erased(Work):
    rows: int
    files: int
    snapshots: int
    snapshot_id: int | None
    last: bool
    sequence: int


@dataclass
class Outcome:
    """The outcome for a table, or the outcome that it would have."""

    table: str
    rows: int = 0
    files: int = 0
    """Data files that had such rows."""
    searched: int = 0
    snapshots: int = 0
    """Snapshots that were dropped."""
    objects: int = 0
    """Files that were deleted."""
    uuid: str = ""
    sequence: int = 0
    """The snapshot that was searched as a whole: later files are not covered."""
    reason: str | None = None
    """Why it was not searched, or has nothing to search."""
    has_column: bool = True

    def add(self, work: _Erased) -> None:
        """Count what a commit removed."""
        self.rows, self.files = self.rows + work.rows, self.files + work.files
        self.snapshots, self.sequence = self.snapshots + work.snapshots, work.sequence


@dataclass
class OwnErasure:
    """The erasure of one value from one table."""

    tenant: Tenant
    entry: OwnTable
    searched: SearchedValue
    _rows: dict[str, int] = field(default_factory=dict)
    """Matching rows, by the paths of files that were searched."""
    _again: dict[str, Rewritten] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)

    def count(self) -> Outcome:
        """Count what an erasure would remove; changes nothing."""
        return self._guarded(self._count)

    def erase(self, erasure_id: str) -> Outcome:
        """Remove the rows, the history and its files.

        Raises:
            Transient: other writers kept committing first: run it again.
            OSError, psycopg.OperationalError: run it again.
        """
        return self._guarded(lambda outcome: self._erase(erasure_id, outcome))

    def search_again(self, uuid: str, sequence: int) -> Outcome:
        """Search all files of the table that an erasure covered, again."""

        def search(outcome: Outcome) -> None:
            state = table_state.read_state(self.tenant, self.entry)
            if str(state.metadata.table_uuid) != uuid:
                return
            names = names_of(state.metadata)
            for entry in table_state.live_entries(state, with_deletes=True).values():
                if (entry.sequence_number or 0) <= sequence:
                    rows = self._search(state, entry.data_file, names)
                    outcome.searched += 1
                    outcome.rows, outcome.files = outcome.rows + rows, outcome.files + bool(rows)

        return self._guarded(search)

    def _guarded(self, do: Callable[[Outcome], None]) -> Outcome:
        outcome = Outcome(self.entry.shown)
        try:
            do(outcome)
        except NoSuchTable:
            return Outcome(self.entry.shown, reason="it was dropped", has_column=False)
        except (MemoryError, Transient):
            raise
        except UNREADABLE as error:
            reason = f"it cannot be read or written: {type(error).__name__}: {str(error)[:100]}"
            reason = error.message if isinstance(error, PulseError) else reason
            outcome.reason = reason.replace(self.searched.value, "…")
        return outcome

    def _read_state(self, outcome: Outcome) -> TableState:
        """The table now. Raises NotRewritten: it cannot be searched, or not changed."""
        state = table_state.read_state(self.tenant, self.entry)
        outcome.has_column = bool(self.searched.columns(state.metadata))
        if outcome.has_column:
            table_state.check_rewritable(state.metadata)
            if (other := self.searched.incomparable(state.metadata)) is not None:
                raise NotRewritten(f"{other}: only strings, integers and numbers can be compared")
            if more := sorted(name for name in state.metadata.refs if name != "main"):
                raise NotRewritten(f"it has branches or tags, whose snapshots stay: {', '.join(more)[:100]}")
        return state

    def _count(self, outcome: Outcome) -> None:
        state = self._read_state(outcome)
        if outcome.has_column:
            files = self._matching(state, table_state.live_files(state))
            outcome.searched = len(self._rows)
            outcome.rows, outcome.files = sum(self._rows[file.file_path] for file in files), len(files)

    def _erase(self, erasure_id: str, outcome: Outcome) -> None:
        state = self._read_state(outcome)
        if not outcome.has_column:
            return
        table_state.live_files(state)
        reached = set(ReachableFiles(state.store.store, self.entry.location).of(state.table))
        before = noted_files.note(self.tenant, erasure_id, self.entry.shown, reached)
        fail_point("own.erase.planned")
        outcome.uuid = str(state.metadata.table_uuid)
        while True:
            work = commit(_Commit(self.tenant, self.entry, partial(self._stage, erasure_id, outcome)))
            assert work is not None  # noqa: S101 - `stage` always stages
            outcome.add(work)
            if work.last:
                break
        outcome.searched = len(self._rows)
        outcome.objects = self._remove(erasure_id, before | self._written)
        fail_point("own.erase.removed")
        noted_files.forget(self.tenant, erasure_id, self.entry.shown)

    def _stage(self, erasure_id: str, outcome: Outcome) -> _Erased:
        """Stage the next commit: without a part of the files, and with the last part without history."""
        summary, current = {PROPERTY: erasure_id}, self._read_state(outcome)
        live = table_state.live_files(current)
        hit = self._matching(current, live)
        part = _part(hit)
        rewritten = [self._rewritten(current, file) for file in part]
        following = replace(current.foreign, mark=erasure_id)
        number = current.metadata.current_snapshot_id
        if part:
            added = [again.file for again in rewritten if again.file is not None]
            step = following.replaced(part, added, summary, same_rows=False)
            following, number = replace(following, document=step.document), step.snapshot_id
        last, dropped = len(part) == len(hit), set[int]()
        if last:
            if number is not None and (alone := following.live_only(summary)) is not None:
                following, number = replace(following, document=alone.document), alone.snapshot_id
            dropped = {item["snapshot-id"] for item in following.document.get("snapshots") or ()} - {number}
        document = table_metadata.without_snapshots({"snapshots": []} | following.document, dropped)
        old = current.table.metadata_location
        new = table_metadata.write_next(document, old, with_log=not last, store=current.store.store)
        self._written.add(new)
        return _Erased(
            tables=[Next(self.entry.row, old, new)],
            rows=sum(again.dropped for again in rewritten),
            files=len(part),
            snapshots=len(dropped & {snapshot.snapshot_id for snapshot in current.metadata.snapshots}),
            snapshot_id=number,
            last=last,
            sequence=int(document.get("last-sequence-number") or 0),
        )

    def _matching(self, state: TableState, live: dict[str, DataFile]) -> list[DataFile]:
        """Files with matching rows, in order."""
        names = names_of(state.metadata)
        for path, file in live.items():
            if path not in self._rows:
                self._rows[path] = self._search(state, file, names)
        return [file for path, file in sorted(live.items()) if self._rows[path]]

    def _search(self, state: TableState, file: DataFile, names: Names) -> int:
        matches = 0
        with foreign_files.opened(state.store.store, file) as parquet:
            foreign_files.shape(parquet.metadata)
            schema_arrow = parquet.schema_arrow
            columns = self.searched.columns_to_read(schema_arrow, names)
            size = rows_at_a_time(parquet.metadata)
            for batch in parquet.iter_batches(size, columns=columns, use_threads=False) if columns else ():
                with_ids = pa.schema([schema_arrow.field(name) for name in batch.schema.names])
                rows = pa.RecordBatch.from_arrays(batch.columns, schema=with_ids)
                matches += self.searched.mask(rows, names).true_count
        return matches

    def _rewritten(self, state: TableState, file: DataFile) -> Rewritten:
        """The file without the matching rows."""
        if file.file_path not in self._again:
            if self._rows[file.file_path] == file.record_count:
                again = Rewritten(None, file.record_count)
            elif file.spec_id != state.metadata.default_spec_id:
                raise NotRewritten("a file with such rows is of an earlier partition spec")
            else:
                names = names_of(state.metadata)
                again = foreign_files.write_again(
                    state.store, [file], state.metadata, lambda rows: self.searched.mask(rows, names)
                )
                if again.dropped != self._rows[file.file_path]:
                    raise NotRewritten("a file changed while it was written again")
            self._again[file.file_path] = again
            self._written.update([plain(again.file.file_path)] if again.file else [])
        again = self._again[file.file_path]
        if again.file and again.file.spec_id != state.metadata.default_spec_id:
            raise NotRewritten("its partition spec changed meanwhile")
        return again

    def _remove(self, erasure_id: str, before: set[str]) -> int:
        """Delete the files that the table had before and has no more, and remains of Pulse's own.

        Manifests that this erasure wrote and did not commit name removed files, with bounds of their columns.
        """

        by = table_state.access(self.entry)
        dead = object_store.store_time() - DEAD
        removable = [
            file
            for file in object_store.listed(self.entry.location, by.store)
            if file.path in before
            or erasure_id in file.name.replace("-", "")
            or (file.name.startswith(foreign_files.PREFIX) and file.modified <= dead)
        ]
        return orphan_files.remove(
            self.tenant,
            lambda: table_state.read_state(self.tenant, self.entry).table,
            removable,
            with_log=False,
            by_log=False,
            by=by,
        ).objects


@dataclass
class _Commit(Change[_Erased]):
    table: OwnTable
    stage_next: Callable[[], _Erased]
    point = "own.erase"
    role = ROLE

    def stage(self, lost: SwapLost | None) -> _Erased:
        return self.stage_next()

    def was_committed(self, work: _Erased) -> bool:
        current = table_state.read_state(self.tenant, self.table)
        if current.table.metadata_location == work.tables[0].new:
            return True
        snapshot_ids = {snapshot.snapshot_id for snapshot in current.metadata.snapshots}
        return work.files > 0 and work.snapshot_id in snapshot_ids


def _part(hit: list[DataFile]) -> list[DataFile]:
    """The first of the files, about as many as one commit replaces."""
    part, size = list[DataFile](), 0
    for file in hit:
        if part and size + file.file_size_in_bytes > PART_BYTES:
            break
        part.append(file)
        size += file.file_size_in_bytes
    return part
