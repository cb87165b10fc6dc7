"""Runs of claims, and filters of large ones, as files of this machine: fetched from Postgres once.

A run never changes, so its file is right or not there. Nothing depends on the folder: whoever deletes it, or
fills its disk, makes the next batch fetch again.
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

from pulse_pipelines.tables import claim_filters
from pulse_pipelines.tables.claim_filters import Filters
from pulse_pipelines.tables.digests import BYTES, Digests
from pulse_pipelines.tables.parquet_files import token
from pulse_resources import postgres
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

KEPT_IDS = 4_096
"""A run of fewer ids comes with its row: it is fetched as fast as a file is opened."""

SLICE = 4 * 1024 * 1024
"""Bytes that are asked for at a time: of a value of many megabytes most of the time goes into its buffers.

Files are written by as much at a time, aligned: Linux then keeps them in huge pages, and a process that has
just mapped one looks into it 10,000 times in half a millisecond instead of ten."""
DIGESTS = (
    "SELECT substring(digests FROM %s FOR %s) FROM processed_event_ids WHERE dataset_id = %s AND run = %s"
)
FILTER = "SELECT substring(filter FROM %s FOR %s) FROM processed_event_ids WHERE dataset_id = %s AND run = %s"


@dataclass(frozen=True)
class Run:
    """A row of `processed_event_ids`."""

    dataset_id: UUID
    run: int
    newest: int
    """The latest addition that it holds: a run as it was added, where this one was merged."""
    ids: int
    ends: Sequence[int]
    """By partition: the offset after the last event that they are of."""
    claimed_on: date
    """When the newest was."""
    digests: bytes | None
    """Of a small one."""
    filter_bytes: int = 0
    """Of the filter; 0: it has none."""


def wholes(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs by what they are pieces of: those of one merge have one `newest`, each a range of digests."""
    pieces: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        pieces[run.newest].append(run)
    return [sorted(each, key=lambda run: run.run) for each in pieces.values()]


def digests(connection: postgres.Connection, run: Run) -> Digests:
    """The digests of a run.

    Raises:
        Transient: it is gone, and its ids are in another one or forgotten. Never in the snapshot of the
            transaction that found it.
    """
    if run.digests is not None:
        return Digests.unpacked(run.digests)
    if (found := mapped(run)) is not None:
        return found
    packed = b"".join(_slices(connection, DIGESTS, run, run.ids * BYTES))
    with contextlib.suppress(OSError):  # a full disk, say
        _write(_folder(run.dataset_id) / str(run.run), [packed])
    return Digests.unpacked(packed)


def mapped(run: Run) -> Digests | None:
    """The digests of a run, if it is a file here."""
    words = _mapped(_folder(run.dataset_id) / str(run.run), run.ids * BYTES)
    return None if words is None else Digests.unpacked(words.view("<u8"))


def filters(
    connection: postgres.Connection, pieces: Sequence[Run]
) -> Iterator[tuple[Sequence[Run], Filters]]:
    """The filters of the pieces of a merge: all in one file, or one after the other on a full disk.

    Raises:
        Torn: a filter is not as it was made.
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
    """Remove a file that is not what it was."""
    with contextlib.suppress(OSError):
        _filters_path(pieces).unlink(missing_ok=True)


def filter_of(connection: postgres.Connection, run: Run) -> bytes:
    """The filter of a run as Postgres has it.

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
        wanted = [start, SLICE, run.dataset_id, run.run]
        found = connection.execute(query, wanted, binary=True).fetchone()
        if found is None or found[0] is None:
            raise Transient("a run of claims was replaced meanwhile", fix="Nothing was changed: try again")
        yield found[0]


def clean(dataset_id: UUID, left: Iterable[Run]) -> None:
    """Remove the files of runs that are gone, and of other datasets where all take too much room."""
    large = [run for run in left if run.digests is None]
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
    """Remove the files of the datasets that were looked into the longest ago."""
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
    """A file of so many bytes; None: there is none."""
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
    """The same bytes in blocks of `SLICE`, each valid until the next one."""
    block, filled = memoryview(bytearray(SLICE)), 0
    for part in parts:
        left = memoryview(part)
        while left:
            taken = left[: SLICE - filled]
            block[filled : filled + len(taken)] = taken
            left, filled = left[len(taken) :], filled + len(taken)
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
