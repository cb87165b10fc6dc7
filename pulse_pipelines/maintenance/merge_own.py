"""Merging of small data files of a table of a tenant's own, of one partition each, in one commit.

Rows and columns stay what they are (see `tables.foreign_files`). Files whose like cannot be written are
left, and so are all files of a table with delete files. Files are merged by size, the smallest first, so
that one is written again about as often as its partition doubles. A file that went meanwhile ends its
group: engines that change the table win.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import table_state
from pulse_pipelines.lake.catalog import ROLE, OwnTable
from pulse_pipelines.lake.table_state import NotRewritten, TableState
from pulse_pipelines.tables import foreign_files
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.foreign_files import Shape, Unfit
from pulse_pipelines.tables.orphan_files import Access
from pulse_resources.iceberg import table_metadata

MIN_FILES = 5
"""Files that are merged, at least: as in Iceberg's own procedure."""
SMALL = 0.75
"""A file of at least this part of the target is not small, as there."""
MOST_FILES, MOST_BYTES = 2_000, 512 * 1024 * 1024
"""Limits of a run, of all tables of a tenant together."""
TABLE_FILES = 1_000
"""Small files of one table that a run looks at."""
AT_A_TIME = 4
"""Footers read in parallel."""
PROPERTY = "pulse.upkeep-merge"
"""Snapshot property: how many files were merged."""
UNREADABLE = (*table_state.UNREADABLE, OSError, MemoryError, pa.ArrowException, ValidationException)
"""Exceptions for which a group, or its table, is left: its files are damaged, or made to look so."""


@dataclass
class Budget:
    """The time and bytes left for a run."""

    files: int = MOST_FILES
    bytes: int = MOST_BYTES
    until: float = math.inf
    """Moment, by `time.monotonic`."""

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until

    def check(self) -> None:
        """Raise Unfit if the time is over."""
        if self.late:
            raise Unfit("the time for it was over")


@dataclass(frozen=True)
class Group:
    """Files of one partition, and the file that has their rows."""

    before: Sequence[DataFile]
    after: DataFile

    def stands(self, live: dict[str, DataFile], spec_id: int) -> bool:
        """Whether all of its files are still the table's, and their partitions written as before."""
        return spec_id == self.after.spec_id and all(file.file_path in live for file in self.before)


@dataclass
class Merged:
    """The result for a table."""

    files: int = 0
    into: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Numbers of files that were left, by the reason."""


@dataclass(frozen=True)
class _Merge(Work):
    groups: Sequence[Group]
    snapshot_id: int


def merge(tenant: Tenant, table: OwnTable, budget: Budget) -> Merged:
    """Merge small files of a table, as far as the budget goes.

    Raises:
        NotRewritten: the table is of a kind that is left alone.
        Transient: other writers kept committing first; nothing was changed.
        errors of `UNREADABLE`: its files cannot be read; nothing was changed.
    """
    merged = Merged()
    work = commit(_FileMerge(tenant, table, budget, merged))
    if work is not None:
        merged.files = sum(len(group.before) for group in work.groups)
        merged.into = len(work.groups)
    return merged


@dataclass
class _FileMerge(Change[_Merge]):
    """Replaces groups of small files of a table by merged ones."""

    table: OwnTable
    budget: Budget
    merged: Merged
    groups: list[Group] | None = None
    """Merged files that the table can still take; None before the first try."""
    point = "own.merge"
    role = ROLE

    def stage(self, lost: SwapLost | None) -> _Merge | None:
        current = table_state.read_state(self.tenant, self.table)
        _check(current.metadata)
        live = table_state.live_files(current)
        if self.groups is None:
            self.groups = list(_groups(current, live, self.budget, self.merged))
        spec_id, standing = current.metadata.default_spec_id, list[Group]()
        for group in self.groups:
            if group.stands(live, spec_id):
                standing.append(group)
            else:
                self.merged.skipped["was replaced meanwhile"] += len(group.before)
        self.groups = standing
        if not standing:
            return None
        following = current.foreign.replaced(
            (file for group in standing for file in group.before),
            (group.after for group in standing),
            {PROPERTY: str(sum(len(group.before) for group in standing))},
            same_rows=True,
        )
        old = current.table.metadata_location
        new = table_metadata.write_next(following.document, old, store=current.store.store)
        return _Merge([Next(self.table.row, old, new)], standing, following.snapshot_id)

    def was_committed(self, work: _Merge) -> bool:
        current = table_state.read_state(self.tenant, self.table)
        return current.metadata.snapshot_by_id(work.snapshot_id) is not None


def _check(metadata: TableMetadata) -> None:
    table_state.check_rewritable(metadata)
    if metadata.sort_order().fields:
        raise NotRewritten("it has a sort order, which a merge would not keep")
    if metadata.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet").lower() != "parquet":
        raise NotRewritten("its files are not to be Parquet")


def _groups(state: TableState, live: dict[str, DataFile], budget: Budget, merged: Merged) -> Iterator[Group]:
    """Merge files of partitions, those with the most small files first."""
    metadata, by = state.metadata, state.store
    target = _target(metadata)
    partitions: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for file in live.values():
        if file.spec_id != metadata.default_spec_id:
            merged.skipped["is of an earlier partition spec"] += 1
        elif file.sort_order_id:
            merged.skipped["is sorted"] += 1
        elif any(type(value) is float for value in _partition(file)):
            merged.skipped["is of a partition of floating-point numbers"] += 1
        elif 0 < file.file_size_in_bytes < target * SMALL:
            partitions[_partition(file)].append(file)
    remaining = TABLE_FILES
    for files in sorted(partitions.values(), key=len, reverse=True):
        most = min(remaining, budget.files)
        if len(files) < MIN_FILES or most < MIN_FILES or budget.late:
            return
        files = sorted(files, key=lambda file: (file.file_size_in_bytes, file.file_path))[:most]
        remaining -= len(files)
        budget.files -= len(files)
        for alike in _alike(by.store, files, merged).values():
            for chosen in batches(alike, target):
                if (group := _group(by, chosen, metadata, budget, merged)) is not None:
                    yield group


def _group(
    by: Access, chosen: list[DataFile], metadata: TableMetadata, budget: Budget, merged: Merged
) -> Group | None:
    size = sum(file.file_size_in_bytes for file in chosen)
    if size > budget.bytes or budget.late:
        return None
    budget.bytes -= size
    try:
        written = foreign_files.write_again(by, chosen, metadata, alive=budget.check)
    except UNREADABLE as error:
        merged.skipped[_reason(error)] += len(chosen)
        return None
    return None if written.file is None else Group(chosen, written.file)


def _alike(
    store: pafs.S3FileSystem, files: Sequence[DataFile], merged: Merged
) -> dict[Shape, list[DataFile]]:
    """The files by their columns."""
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="footers") as pool:
        shapes = list(pool.map(partial(_shape, store), files))
    by_shape: dict[Shape, list[DataFile]] = defaultdict(list)
    for file, (shape, why) in zip(files, shapes, strict=True):
        if shape is None:
            merged.skipped[why] += 1
        else:
            by_shape[shape].append(file)
    return by_shape


def _shape(store: pafs.S3FileSystem, file: DataFile) -> tuple[Shape | None, str]:
    try:
        with foreign_files.opened(store, file) as parquet:
            return foreign_files.shape(parquet.metadata), ""
    except UNREADABLE as error:
        return None, _reason(error)


def _partition(file: DataFile) -> tuple[Any, ...]:
    return tuple(file.partition[number] for number in range(len(file.partition)))


def _reason(error: BaseException) -> str:
    return error.message if isinstance(error, Unfit) else f"{type(error).__name__}: {str(error)[:100]}"


def _target(metadata: TableMetadata) -> int:
    size = metadata.properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES)
    return min(int(size or TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT), MOST_BYTES)


def batches(files: Sequence[DataFile], target: int) -> Iterator[list[DataFile]]:
    """Sets of files to merge, of the target's size at most: the smallest, then others no larger than these.

    A file that is larger than all others of its set together is not worth its writing: it is left out.
    """
    pending = sorted(files, key=lambda file: (file.file_size_in_bytes, file.file_path))
    while pending:
        chosen, total = list[DataFile](), 0
        for file in pending:
            size = file.file_size_in_bytes
            if chosen and (total + size > target or (len(chosen) >= MIN_FILES and size > total)):
                break
            chosen.append(file)
            total += size
        pending = pending[len(chosen) :]
        while len(chosen) > 1 and 2 * chosen[-1].file_size_in_bytes > total:
            total -= chosen.pop().file_size_in_bytes
        if len(chosen) < MIN_FILES:
            return
        yield chosen
