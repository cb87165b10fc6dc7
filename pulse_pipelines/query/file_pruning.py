"""File pruning: find the files with a snapshot's newest rows by the time bounds in its manifests.

Manifests are immutable, so the bounds in each are read once per process. A query over the table itself reads
all manifests each time: about a millisecond for each.
"""

import struct
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.concurrent import ExecutorFactory

from pulse_pipelines.domain.moments import EPOCH
from pulse_resources import iceberg

DAY_US = 86_400_000_000
ALWAYS = 2**63 - 1
"""Microseconds after every moment; its negative is before all."""
CACHED_FILES = 50_000
"""Maximum data files whose bounds this process caches, about 1 kB each."""
MANY_ROWS = 50_000
"""Rows in the files of a query beyond which it pays to query a shorter span first."""
AMPLE = 4
"""Expected rows in the first, shortest span, as a multiple of the rows requested."""
WIDER = 16
"""Factor of expected rows from one span to the next."""


@dataclass(frozen=True)
class Span:
    """Moments [start, end) in microseconds since the epoch."""

    start: int = -ALWAYS
    end: int = ALWAYS

    @classmethod
    def between(cls, start: datetime | None, end: datetime | None) -> "Span":
        return cls(
            -ALWAYS if start is None else (start - EPOCH) // timedelta(microseconds=1),
            ALWAYS if end is None else (end - EPOCH) // timedelta(microseconds=1),
        )

    def meets(self, low: int, high: int) -> bool:
        return low < self.end and high >= self.start

    def covers(self, low: int, high: int) -> bool:
        return self.start <= low and high < self.end


@dataclass(frozen=True)
class BoundedFile:
    """A data file, and its bounds of `timestamp` (or another column of longs)."""

    file: DataFile
    low: int
    high: int


def newest_files(
    metadata: TableMetadata, manifests: Iterable[ManifestFile], span: Span, limit: int, until: float
) -> list[BoundedFile] | None:
    """Find files that certainly contain the newest `limit` rows within the span.

    Files wholly within the span with at least `limit` rows set a floor: the newest rows are at or above it,
    so files that end below it are pruned. A file without bounds is never pruned.

    Returns:
        None if bounds do not decide: the snapshot has delete files, or a partitioning other than the
        table's current one.

    Raises:
        TimeoutError: `until` (by `time.monotonic()`) came first; bounds read by then stay cached.
        OSError: the object store failed; FileNotFoundError: a manifest is gone.
    """
    spec, column = metadata.default_spec_id, metadata.schema().find_field("timestamp").field_id
    files: list[BoundedFile] = []
    floor = -ALWAYS
    live = [(_days(m), m) for m in manifests if m.has_added_files() or m.has_existing_files()]
    if any(m.content is ManifestContent.DELETES or m.partition_spec_id != spec for _, m in live):
        return None
    live = [(days, manifest) for days, manifest in live if span.meets(*days)]
    live.sort(key=lambda item: item[0][1], reverse=True)
    for high, group in groupby(live, key=lambda item: item[0][1]):
        if high < floor:
            break
        files += _read([manifest for _, manifest in group], column, until)
        floor = _floor((f for f in files if span.covers(f.low, f.high)), limit)
    return [f for f in files if f.high >= floor and span.meets(f.low, f.high)]


def files_between(
    metadata: TableMetadata, manifests: Iterable[ManifestFile], column: int, low: int, high: int, until: float
) -> list[BoundedFile] | None:
    """Find files that may have rows with low <= column <= high (longs); otherwise as `newest_files`."""
    live = [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]
    spec = metadata.default_spec_id
    if any(m.content is ManifestContent.DELETES or m.partition_spec_id != spec for m in live):
        return None
    return [f for f in _read(live, column, until) if f.low <= high and f.high >= low]


def widening_spans(files: Sequence[BoundedFile] | None, span: Span, limit: int) -> Iterator[Span]:
    """Suffixes of the span in which to query the newest `limit` rows, shortest first; the last is the span.

    The first suffix with `limit` rows has the newest ones. Their lengths assume that rows spread evenly over
    the time of their file; they save reading most of a large file, whose row groups have bounds, too.
    """
    rows = sum(f.file.record_count for f in files or ())
    if files and rows > MANY_ROWS and all(-ALWAYS < f.low <= f.high < ALWAYS for f in files):
        low, high = min(f.low for f in files), min(span.end, max(f.high for f in files) + 1)
        row_count = limit * AMPLE
        while row_count < rows // AMPLE:
            # The latest start after which enough rows are expected: expectations fall with later starts.
            after = (
                bisect_left(range(low, high), -row_count, key=lambda at: -_expected(files, at, span.end)) - 1
            )
            yield Span(max(span.start, low + after), span.end)
            row_count *= WIDER
    yield span


def _expected(files: Sequence[BoundedFile], start: int, end: int) -> int:
    """The expected rows within [start, end), if each file's rows are spread evenly."""
    return sum(
        f.file.record_count * max(0, min(f.high + 1, end) - max(f.low, start)) // (f.high + 1 - f.low)
        for f in files
    )


def _floor(files: Iterable[BoundedFile], limit: int) -> int:
    """The latest moment at or after which there are certainly `limit` rows."""
    rows = 0
    for file in sorted(files, key=lambda f: f.low, reverse=True):
        rows += file.file.record_count
        if rows >= limit:
            return file.low
    return -ALWAYS


def _days(manifest: ManifestFile) -> tuple[int, int]:
    """First and last moment of the days of the manifest's files."""
    days = manifest.partitions[0] if manifest.partitions else None
    if days is None or days.lower_bound is None or days.upper_bound is None or days.contains_null:
        return -ALWAYS, ALWAYS
    first, last = (struct.unpack("<i", bound)[0] for bound in (days.lower_bound, days.upper_bound))
    return first * DAY_US, (last + 1) * DAY_US - 1


class _BoundsCache:
    """An LRU cache of bounded files by manifest path and column."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[str, int], tuple[BoundedFile, ...]] = OrderedDict()
        self._files = 0

    def get(self, manifest: ManifestFile, column: int) -> tuple[BoundedFile, ...]:
        """The manifest's files, read unless cached."""
        key = (manifest.manifest_path, column)
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
        files = tuple(_bounded(e.data_file, column) for e in manifest.fetch_manifest_entry(iceberg.file_io()))
        with self._lock:
            if key not in self._cached:
                self._cached[key] = files
                self._files += len(files)
            while self._files > CACHED_FILES and len(self._cached) > 1:
                self._files -= len(self._cached.popitem(last=False)[1])
        return files


_CACHE = _BoundsCache()


def _read(manifests: Sequence[ManifestFile], column: int, until: float) -> list[BoundedFile]:
    def read(manifest: ManifestFile) -> tuple[BoundedFile, ...]:
        if time.monotonic() > until:
            raise TimeoutError
        return _CACHE.get(manifest, column)

    if len(manifests) == 1:
        return list(read(manifests[0]))
    return [f for files in ExecutorFactory.get_or_create().map(read, manifests) for f in files]


def _bounded(file: DataFile, column: int) -> BoundedFile:
    """A file with only the bounds of one column of its statistics, to keep the cache small."""
    bounds = [(b or {}).get(column) for b in (file.lower_bounds, file.upper_bounds)]
    low, high = (None if b is None else struct.unpack("<q", b)[0] for b in bounds)
    lean = DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        lower_bounds={} if bounds[0] is None else {column: bounds[0]},
        upper_bounds={} if bounds[1] is None else {column: bounds[1]},
    )
    return BoundedFile(lean, -ALWAYS if low is None else low, ALWAYS if high is None else high)
