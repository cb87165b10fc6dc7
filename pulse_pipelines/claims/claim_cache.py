"""Local cache of claim runs, and of the filters of large ones, as files: each is fetched from Postgres once.

Runs are immutable, so a cached file is either valid or missing. The folder can be deleted, or its disk fill
up, at any time: the next batch then fetches from Postgres again.
"""

import contextlib
import mmap
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from pulse_pipelines.claims import claim_filters
from pulse_pipelines.claims.claim_filters import Filters
from pulse_pipelines.tables.digests import BYTES, Digests
from pulse_pipelines.tables.parquet_files import token
from pulse_resources import postgres
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

RETAINED_IDS = 4_096
"""A run of fewer ids is stored inline in its row: fetching it takes no longer than opening a file."""

SLICE = 4 * 1024 * 1024
"""Bytes per fetch from Postgres: for a value of many megabytes most of the time goes into its buffers.

Files are written in aligned blocks of this size: Linux then keeps them in huge pages, and a process that has
just mapped one does 10,000 lookups in half a millisecond instead of ten."""
DIGESTS = (
    "SELECT substring(digests FROM %s FOR %s) FROM processed_event_ids WHERE dataset_id = %s AND run = %s"
)
FILTER = "SELECT substring(filter FROM %s FOR %s) FROM processed_event_ids WHERE dataset_id = %s AND run = %s"


@dataclass(frozen=True)
class Run:
    """A row of `processed_event_ids`: a sorted run of digests."""

    dataset_id: UUID
    run: int
    newest: int
    """Number of the latest addition in it: for a run that was never merged its own number."""
    ids: int
    ends: Sequence[int]
    """By partition: the offset after the last event of these ids."""
    claimed_on: date
    """Date of the latest addition."""
    digests: bytes | None
    """Inline digests of a small run; None for others."""
    filter_bytes: int = 0
    """Size of the run's filter in bytes; 0: it has none."""
    stays: bool = False
    """Claims expire, but not those of this dataset."""


def wholes(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs into logical runs: pieces of one merge share `newest`, and each holds a range of digests."""
    pieces: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        pieces[run.newest].append(run)
    return [sorted(piece, key=lambda run: run.run) for piece in pieces.values()]


def digests(connection: postgres.Connection, run: Run) -> Digests:
    """Load the digests of a run.

    Raises:
        Transient: the run was deleted: its ids were merged into another run or expired. Never raised within
            the snapshot of the transaction that selected it.
    """
    if run.digests is not None:
        return Digests.unpacked(run.digests)
    if (cached := mapped(run)) is not None:
        return cached
    packed = b"".join(_slices(connection, DIGESTS, run, run.ids * BYTES))
    with contextlib.suppress(OSError):  # for example, the disk is full
        _write(_folder(run.dataset_id) / str(run.run), [packed])
    return Digests.unpacked(packed)


def mapped(run: Run) -> Digests | None:
    """The memory-mapped digests of a run; None if it is not cached on this machine."""
    words = _mapped(_folder(run.dataset_id) / str(run.run), run.ids * BYTES)
    return None if words is None else Digests.unpacked(words.view("<u8"))


def filters(
    connection: postgres.Connection, pieces: Sequence[Run]
) -> Iterator[tuple[Sequence[Run], Filters]]:
    """Load the filters of the pieces of a merge: from one cached file, or one by one if the disk is full.

    Raises:
        Torn: a filter is corrupt.
        Transient: as `digests`.
    """
    path, sizes = _filters_path(pieces), [(run.ids, run.filter_bytes) for run in pieces]
    memory = _mapped(path, sum(size for _, size in sizes))
    if memory is None:
        with contextlib.suppress(OSError):
            _write(path, (_filter(connection, run) for run in pieces))
            memory = _mapped(path, sum(size for _, size in sizes))
    if memory is not None:
        yield pieces, Filters(memory, sizes)
        return
    for run, size in zip(pieces, sizes, strict=True):
        yield [run], Filters(np.frombuffer(_filter(connection, run), np.uint8), [size])


def forget_filters(pieces: Sequence[Run]) -> None:
    """Remove a corrupt filter file from the cache."""
    with contextlib.suppress(OSError):
        _filters_path(pieces).unlink(missing_ok=True)


def filter_of(connection: postgres.Connection, run: Run) -> bytes:
    """Fetch the filter of a run from Postgres.

    Raises:
        Transient: as `digests`.
    """
    return b"".join(_slices(connection, FILTER, run, run.filter_bytes))


def _filter(connection: postgres.Connection, run: Run) -> bytes:
    packed = filter_of(connection, run)
    claim_filters.check(packed)
    return packed


def _slices(connection: postgres.Connection, query: str, run: Run, size: int) -> Iterator[bytes]:
    for start in range(1, size + 1, SLICE):
        arguments = [start, SLICE, run.dataset_id, run.run]
        row = connection.execute(query, arguments, binary=True).fetchone()
        if row is None or row[0] is None:
            raise Transient("a run of claims was replaced meanwhile", fix="Nothing was changed: try again")
        yield row[0]


def clean(dataset_id: UUID, current: Iterable[Run]) -> None:
    """Remove the files of deleted runs and, if the cache exceeds its limit, those of other datasets."""
    large = [run for run in current if run.digests is None]
    names = {str(run.run) for run in large}
    names |= {_filters_path(pieces).name for pieces in wholes(run for run in large if run.filter_bytes)}
    if not names:
        return
    with contextlib.suppress(OSError):
        for path in _folder(dataset_id).iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)
        _make_room(load_settings().ingest.claim_files_mb * 1024 * 1024)


def _make_room(limit: int) -> None:
    """Evict the files of the least recently used datasets."""
    folders = sorted(_root().iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    room = limit
    for folder in folders:
        paths = list(folder.iterdir())
        room -= sum(path.stat().st_size for path in paths)
        if room < 0:
            for path in paths:
                path.unlink(missing_ok=True)
            folder.rmdir()


def _mapped(path: Path, size: int) -> "npt.NDArray[np.uint8] | None":
    """Map a file if it has exactly this size; None: there is none."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == size:
            os.utime(path.parent)
            return np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), np.uint8)
    return None


def _write(path: Path, parts: Iterable[bytes]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}-{token()}")
    try:
        with unfinished.open("wb") as file:
            for block in _blocks(parts):
                file.write(block)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _blocks(parts: Iterable[bytes]) -> Iterator[memoryview]:
    """Regroup the bytes in blocks of `SLICE`, each valid until the next one."""
    block, filled = memoryview(bytearray(SLICE)), 0
    for part in parts:
        remaining = memoryview(part)
        while remaining:
            piece = remaining[: SLICE - filled]
            block[filled : filled + len(piece)] = piece
            remaining, filled = remaining[len(piece) :], filled + len(piece)
            if filled == SLICE:
                yield block
                filled = 0
    yield block[:filled]


def _filters_path(pieces: Sequence[Run]) -> Path:
    return _folder(pieces[0].dataset_id) / f"{pieces[0].run}.filters"


def _folder(dataset_id: UUID) -> Path:
    return _root() / str(dataset_id)


def _root() -> Path:
    return load_settings().home / "claims"
