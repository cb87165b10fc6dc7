"""The files of a task: candidate data files and raw-zone objects, encoded and uploaded side by side.

Rows are buffered until the task ends or the buffer is full, so that a (dataset, day) gets few, large files.
Encoding uses the core; uploads overlap it in threads.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import costs
from pulse_pipelines.states import state_keys
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.parquet_files import encode, positions
from pulse_pipelines.tables.written_files import CandidateFile, RawPart
from pulse_resources.errors import Transient
from pulse_resources.object_store import put

COPY = "_copy"
"""Column that marks a copy of an earlier row while the files are written."""

UPLOADS = 8
_NAIVE = pa.timestamp("us")
"""Arrow looks up the zone of each timestamp that has one, in 100 ns; arithmetic without it takes 7."""
HOUR_MS = 3_600_000


class _Member(NamedTuple):
    """Raw lines of one day, gzipped."""

    day: date
    events: int
    packed: bytes


class BatchFiles:
    """Collects one tenant's rows and writes them as files; a context manager that waits for uploads.

    Args:
        tenant: whose prefix everything goes under.
        bucket: of the object store.
        stem: begins every file name; unique to the task attempt.
        drop_copies: leave out events with the id of an earlier row of the same buffer.
        pause: called before each upload.
        only_raw: write no data files.
        most_cost: most bytes of all data files, as `costs.file_bytes` counts them; None: any.
    """

    def __init__(
        self,
        tenant: Tenant,
        bucket: str,
        stem: str,
        *,
        drop_copies: bool,
        pause: Callable[[], None],
        only_raw: bool = False,
        most_cost: int | None = None,
    ) -> None:
        self._tenant = tenant
        self._bucket = bucket
        self._stem = stem
        self._drop_copies = drop_copies
        self._pause = pause
        self._only_raw = only_raw
        self._most_cost = most_cost
        self._cost = 0
        self._number = 0
        self._rows: dict[str, tuple[Dataset, list[pa.Table]]] = {}
        self._lines: dict[tuple[str, datetime], list[bytes]] = defaultdict(list)
        self._members: dict[tuple[str, datetime], list[_Member]] = defaultdict(list)
        self._uploads = ThreadPoolExecutor(UPLOADS, thread_name_prefix="upload")
        self._pending: list[Future[None]] = []
        self.buffered_bytes = 0
        self.candidates: list[CandidateFile] = []
        self.copies: dict[UUID, list[int]] = {}
        """By dataset: positions of rows left out as copies. The dedup gate finds and counts them as
        duplicates."""
        self.raw: list[RawPart] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._uploads.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, dataset: Dataset, table: pa.Table) -> None:
        """Buffer conformed rows, and their raw lines if the table has them."""
        self._rows.setdefault(dataset.slug, (dataset, []))[1].append(table)
        self.buffered_bytes += table.nbytes

    def add_raw(self, slug: str, received_ms: int, line: bytes) -> None:
        """Buffer the raw line of an event without a row, under the day on which it was received."""
        hour = datetime.fromtimestamp(received_ms // HOUR_MS * HOUR_MS / 1000, UTC)
        self._lines[slug, hour].append(line)
        self.buffered_bytes += len(line)

    def flush(self) -> None:
        """Write everything that is buffered, and wait for the uploads.

        Raises:
            Transient: the files would cost too much; none of the buffer is written.
        """
        if self._most_cost is not None:
            self._check_cost(self._most_cost)
        for dataset, tables in self._rows.values():
            self._write_rows(dataset, pa.concat_tables(tables))
        for (slug, hour), lines in self._lines.items():
            self._members[slug, hour].append(_Member(hour.date(), len(lines), raw_zone.pack(lines)))
        for (slug, hour), members in self._members.items():
            self._put_raw(slug, hour, members)
        self._rows.clear()
        self._lines.clear()
        self._members.clear()
        self.buffered_bytes = 0
        for upload in self._pending:
            upload.result()
        self._pending.clear()

    def _check_cost(self, most: int) -> None:
        for dataset, tables in self._rows.values():
            count = len(pc.unique(days(pa.concat_tables(tables))))
            self._cost += count * costs.file_bytes(dataset)
        if self._cost > most:
            raise Transient(
                "its events are of so many days and datasets that writing their files would hold up the "
                "other tenants of the batch: the next attempt writes them, after these have settled",
                tenant=self._tenant.slug,
            )

    def _write_rows(self, dataset: Dataset, rows: pa.Table) -> None:
        copies = _copies(rows) if self._drop_copies and not dataset.of_entities else None
        if copies is not None:
            rows = rows.append_column(COPY, copies)
            offsets = self.copies.setdefault(dataset.dataset_id, [])
            offsets.extend(positions(rows.filter(copies)).to_pylist())
        for day, part in _grouped(rows, days(rows)):
            fresh = part
            if raw_zone.LINE in part.column_names:
                for hour, received in _grouped(part, _hours(part)):
                    packed = raw_zone.pack(_joined(chunk) for chunk in received.column(raw_zone.LINE).chunks)
                    self._members[dataset.slug, hour].append(_Member(day, len(received), packed))
                fresh = part.drop_columns([raw_zone.LINE])
            if copies is not None:
                fresh = fresh.filter(pc.invert(part.column(COPY))).drop_columns([COPY])
            if len(fresh) and not self._only_raw:
                self._put_candidate(dataset, day, fresh, len(part) - len(fresh))

    def _put_candidate(self, dataset: Dataset, day: date, rows: pa.Table, copies: int) -> None:
        location = self._tenant.table_location(self._bucket, dataset.slug, dataset.dataset_id)
        path = f"{location}/data/timestamp_day={day}/{self._name()}.parquet"
        candidate, content = encode(dataset, day, path, rows, draft=dataset.of_entities)
        candidate = state_keys.with_frame(dataset, candidate, rows)
        self.candidates.append(replace(candidate, copies=copies))
        self._put(path, content)

    def _put_raw(self, slug: str, hour: datetime, members: Sequence[_Member]) -> None:
        """Write what was received in an hour as one object."""
        prefix = self._tenant.raw_prefix(self._bucket, slug)
        path = f"{prefix}/dt={hour:%Y-%m-%d}/hr={hour:%H}/{self._name()}{raw_zone.SUFFIX}"
        start = 0
        for member in members:
            self.raw.append(RawPart(path, slug, member.day, member.events, start, len(member.packed)))
            start += len(member.packed)
        self._put(path, b"".join(member.packed for member in members))

    def _put(self, path: str, content: "bytes | pa.Buffer") -> None:
        self._pause()
        if len(self._pending) >= 4 * UPLOADS:  # bounds what waits in memory
            self._pending.pop(0).result()
        self._pending.append(self._uploads.submit(put, path, content))

    def _name(self) -> str:
        self._number += 1
        return f"{self._stem}-{self._number}"


def _copies(rows: pa.Table) -> pa.ChunkedArray | None:
    """Mark rows with the id of a row at an earlier position; None if there is none.

    Such a row cannot land, whether or not the first one does: leaving it out here saves rewriting the file
    when events are delivered twice in quick succession.
    """
    ids = rows.column("id")
    if pc.count_distinct(ids).as_py() == len(rows):
        return None
    at = positions(rows)
    first = pa.table({"id": ids, "at": at}).group_by("id").aggregate([("at", "min")])
    return pc.invert(pc.is_in(at, first.column("at_min").combine_chunks()))


def _grouped(rows: pa.Table, of_row: pa.ChunkedArray) -> Iterator[tuple[Any, pa.Table]]:
    """Group rows by the values of `of_row`, in received order."""
    if pc.min(of_row) == pc.max(of_row):
        yield of_row[0].as_py(), rows
        return
    order = pc.sort_indices(of_row)  # stable
    rows = rows.take(order)
    runs = pc.run_end_encode(of_row.take(order).combine_chunks())
    start = 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, rows.slice(start, end - start)
        start = end


def _joined(lines: pa.LargeBinaryArray) -> pa.Buffer:
    """The concatenation of a slice of a binary array, without a copy."""
    if not len(lines):
        return pa.py_buffer(b"")
    offsets = pa.Array.from_buffers(
        pa.int64(), len(lines) + 1, [None, lines.buffers()[1]], offset=lines.offset
    )
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return lines.buffers()[2].slice(first, last - first)


def _hours(table: pa.Table) -> pa.ChunkedArray:
    """The UTC hour in which each row was received."""
    received = table.column("ingested_at")
    return pc.floor_temporal(received.cast(_NAIVE), unit="hour").cast(received.type)


def days(table: pa.Table) -> pa.Array:
    """The UTC day of each row, by its event timestamp."""
    return table.column("timestamp").cast(_NAIVE).cast(pa.date32())
