"""Manifests of tables of a tenant's own, checked in the process of a query before DuckDB opens the table.

DuckDB takes what it cannot decode of a list or of a manifest for its end, so that a damaged table would have
fewer rows. Reading a manifest for this check costs a request that DuckDB alone would not make; DuckDB reuses
the content. Therefore the process that serves remembers for `LIFETIME_S` which manifests were whole, by name,
length and number of files. This leaves open that damage to a manifest in place, which no engine writes twice,
is noticed only after that time. The list itself is read and decoded for each query.

Most of the check is waiting for the object store. So a few manifests are fetched ahead of the one that is
decoded, which remains one at a time: a query's share of the processor is what it was.
"""

import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from hashlib import blake2b
from typing import Any, NamedTuple

import duckdb

from pulse_resources import avro_files

READ = "SELECT content FROM read_blob(?)"
MOST = 10_000
"""Manifests of a table. DuckDB requests one after the other: more take longer than a query may."""
AT_ONCE = 8
"""Manifests of a query that are fetched at the same time ..."""
AHEAD = 64 * 1024 * 1024
"""... as long as they have no more bytes than this, by the list; one may be larger."""
LARGEST = 512 * 1024 * 1024
"""Bytes of a table's manifests altogether, once they are unpacked: about a million data files."""
LIFETIME_S = 300.0
REMEMBERED = 200_000
"""Marks that a process remembers, some 100 bytes each."""
ANSWERED = 2_000
"""Marks in an answer of a query's process, whose size is limited; later queries check the rest."""
_MARK_BYTES = 8
_STACK = 1024 * 1024
"""Bytes of a fetching thread's stack, which count as memory of the query; by default eight times more."""
_PATTERNS = re.compile(r"[*?\[]")
"""Letters by which DuckDB takes a path for a pattern."""
_COUNTS = (
    ("added_files_count", "existing_files_count", "deleted_files_count"),
    ("added_data_files_count", "existing_data_files_count", "deleted_data_files_count"),
)
"""Fields of the list that count a manifest's files, as it is spelled now and was earlier."""


class _Listed(NamedTuple):
    """A manifest, as the list describes it."""

    path: str
    length: int | None
    """Bytes."""
    files: int | None
    """Entries, if the list counts them."""

    def mark(self) -> str:
        described = f"{self.path}\0{self.length}\0{self.files}"
        return blake2b(described.encode(errors="replace"), digest_size=_MARK_BYTES).hexdigest()


def check(database: duckdb.DuckDBPyConnection, manifest_list: str, checked: Collection[str]) -> list[str]:
    """Check that a list, and each manifest in it, can be decoded up to its end.

    Args:
        manifest_list: its location.
        checked: marks of manifests that need no check.

    Returns the marks of the manifests that were checked.

    Raises:
        ValueError: one is damaged, is not as the list describes it, would become too much in memory, or its
            name is a pattern for DuckDB.
        duckdb.Error: one cannot be read.
    """
    content = _read(database, manifest_list, "list of manifests")
    try:
        number = avro_files.count_rows(content)
    except ValueError as error:
        raise ValueError(f"its list of manifests is damaged: {error}") from error
    if number > MOST:
        raise ValueError(f"it has {number:,} manifests, and {MOST:,} are permitted: rewrite them as fewer")
    listed = _listed(database, manifest_list)
    if len(listed) != number:
        raise ValueError(f"its list of manifests is damaged: DuckDB decodes {len(listed):,} of {number:,}")
    marks, unpacked = [], 0
    unknown = [manifest for manifest in listed if manifest.mark() not in checked]
    with closing(_fetched(database, unknown)) as fetched:
        for manifest, content in fetched:
            try:
                unpacked += _check_manifest(database, manifest, content)
            except ValueError as error:
                raise ValueError(f"its manifest {manifest.path[-200:]!r} cannot be read: {error}") from error
            if unpacked > LARGEST:
                raise ValueError(f"its manifests become more than {LARGEST:,} bytes")
            marks.append(manifest.mark())
    return marks


def _fetched(
    database: duckdb.DuckDBPyConnection, manifests: Sequence[_Listed]
) -> Generator[tuple[_Listed, bytes]]:
    """The manifests, in order, and their contents, which other threads fetch. Raises as `_read`, in order."""
    if len(manifests) <= 1:
        yield from ((manifest, _read(database, manifest.path, "manifest")) for manifest in manifests)
        return
    fetching: deque[tuple[_Listed, Future[bytes]]] = deque()
    ahead, stack = 0, threading.stack_size(_STACK)
    pool = ThreadPoolExecutor(min(AT_ONCE, len(manifests)), "manifests")
    try:
        for manifest in manifests:
            while fetching and (len(fetching) >= AT_ONCE or ahead + (manifest.length or 0) > AHEAD):
                first, content = fetching.popleft()
                yield first, content.result()
                ahead -= first.length or 0
            fetching.append((manifest, pool.submit(_fetch, database.cursor(), manifest)))
            ahead += manifest.length or 0
        for manifest, content in fetching:
            yield manifest, content.result()
    finally:
        pool.shutdown(cancel_futures=True)
        threading.stack_size(stack)


def _fetch(cursor: duckdb.DuckDBPyConnection, manifest: _Listed) -> bytes:
    with closing(cursor):
        return _read(cursor, manifest.path, "manifest")


def _read(database: duckdb.DuckDBPyConnection, location: str, kind: str) -> bytes:
    if _PATTERNS.search(location):
        raise ValueError(f"DuckDB would read the name of its {kind} as a pattern: {location[:200]!r}")
    row = database.execute(READ, [location]).fetchone()
    if row is None:
        raise ValueError(f"there is no {kind} at {location[:200]!r}")
    return bytes(row[0])


def read_list(
    database: duckdb.DuckDBPyConnection, manifest_list: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """The fields of a list, and its manifests by them, as DuckDB decodes it. Raises duckdb.Error."""
    read = database.execute("SELECT * FROM read_avro(?)", [manifest_list])
    names = [str(name) for name, *_ in read.description]
    return names, [dict(zip(names, row, strict=True)) for row in read.fetchall()]


def _listed(database: duckdb.DuckDBPyConnection, manifest_list: str) -> list[_Listed]:
    names, rows = read_list(database, manifest_list)
    if "manifest_path" not in names:
        raise ValueError("its list of manifests has no field manifest_path")
    return [_described(row) for row in rows]


def _described(row: Mapping[str, Any]) -> _Listed:
    files = None
    for fields in _COUNTS:
        counts = [row.get(name) for name in fields]
        numbers = [count for count in counts if isinstance(count, int) and count >= 0]
        if len(numbers) == len(fields):
            files = sum(numbers)
    length = row.get("manifest_length")
    return _Listed(str(row["manifest_path"]), length if isinstance(length, int) else None, files)


def _check_manifest(database: duckdb.DuckDBPyConnection, manifest: _Listed, content: bytes) -> int:
    """Check a manifest; returns its bytes once it is unpacked.

    Whether rows can be decoded is left to DuckDB, which is six times faster at it and has the last word.
    """
    if manifest.length is not None and len(content) != manifest.length:
        raise ValueError(f"it has {len(content):,} bytes, and {manifest.length:,} by the list of manifests")
    rows, unpacked = avro_files.count_declared_rows(content)
    if manifest.files is not None and rows != manifest.files:
        raise ValueError(f"it has {rows:,} files, and {manifest.files:,} by the list of manifests")
    decoded = 0
    if rows:
        try:
            answer = database.execute("SELECT count(*) FROM read_avro(?)", [manifest.path]).fetchone()
        except (duckdb.InvalidInputException, duckdb.IOException) as error:  # its content has been read
            raise ValueError(str(error).partition("\n")[0]) from error
        decoded = answer[0] if answer else 0
    if decoded != rows:
        raise ValueError(f"of its {rows:,} files {decoded:,} can be decoded")
    return unpacked


class Verdicts:
    """Marks of manifests that were whole, by the folders of their tables. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[str, dict[str, float]] = OrderedDict()
        """When each mark was made, by folder; the folder that a query has read least lately is first."""
        self._number = 0

    def of(self, folder: str, now: float | None = None) -> list[str]:
        """Marks that were made in the last `LIFETIME_S`.

        Args:
            now: by `time.monotonic()`; None: the present.
        """
        since = (time.monotonic() if now is None else now) - LIFETIME_S
        with self._lock:
            times = self._times.get(folder, {})
            recent = {mark: added_at for mark, added_at in times.items() if added_at >= since}
            self._put(folder, recent)
            return list(recent)

    def add(self, folder: str, marks: object, now: float | None = None) -> None:
        """Take note of marks that the process of a query answered; it is not trusted with anything else.

        Args:
            marks: a list; what else it may be is left out.
            now: as in `of`.
        """
        added_at = time.monotonic() if now is None else now
        usable = marks[:ANSWERED] if isinstance(marks, list) else []
        new = {mark: added_at for mark in usable if isinstance(mark, str) and len(mark) == 2 * _MARK_BYTES}
        with self._lock:
            self._put(folder, self._times.get(folder, {}) | new)
            while self._number > REMEMBERED:
                _, dropped = self._times.popitem(last=False)
                self._number -= len(dropped)

    def _put(self, folder: str, times: dict[str, float]) -> None:
        self._number += len(times) - len(self._times.pop(folder, {}))
        if times:
            self._times[folder] = times
