"""Runs of claims as files of this machine: each is fetched from Postgres once, and mapped into memory.

A run never changes, so its file is right or not there. Nothing depends on the folder: whoever deletes it, or
fills its disk, makes the next batch fetch again.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from uuid import UUID

import numpy as np

from pulse_pipelines.tables.digests import BYTES, Digests
from pulse_pipelines.tables.parquet_files import token
from pulse_resources import postgres
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

KEPT_IDS = 4_096
"""A run of fewer ids comes with its row: it is fetched as fast as a file is opened."""

SLICE = 4 * 1024 * 1024
"""Bytes that are asked for at a time: of a value of many megabytes most of the time goes into its buffers."""
DIGESTS = (
    "SELECT substring(digests FROM %s FOR %s) FROM processed_event_ids WHERE dataset_id = %s AND run = %s"
)


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


def digests(connection: postgres.Connection, run: Run) -> Digests:
    """The digests of a run.

    Raises:
        Transient: it is gone, and its ids are in another one or forgotten. Never in the snapshot of the
            transaction that found it.
    """
    if run.digests is not None:
        return Digests.unpacked(run.digests)
    path = _folder(run.dataset_id) / str(run.run)
    with contextlib.suppress(OSError, ValueError):
        words = np.memmap(path, "<u8", "r")
        if words.nbytes == run.ids * BYTES:
            os.utime(path.parent)
            return Digests.unpacked(words)
    packed = b"".join(_slices(connection, run))
    with contextlib.suppress(OSError):  # a full disk, say
        _write(path, packed)
    return Digests.unpacked(packed)


def _slices(connection: postgres.Connection, run: Run) -> Iterator[bytes]:
    for start in range(1, run.ids * BYTES + 1, SLICE):
        wanted = [start, SLICE, run.dataset_id, run.run]
        found = connection.execute(DIGESTS, wanted, binary=True).fetchone()
        if found is None:
            raise Transient("a run of claims was replaced meanwhile", fix="Nothing was changed: try again")
        yield found[0]


def clean(dataset_id: UUID, left: Iterable[Run]) -> None:
    """Remove the files of runs that are gone, and of other datasets where all take too much room."""
    names = {str(run.run) for run in left if run.digests is None}
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


def _write(path: Path, packed: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}-{token()}")
    try:
        unfinished.write_bytes(packed)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _folder(dataset_id: UUID) -> Path:
    return _root() / str(dataset_id)


def _root() -> Path:
    return load_settings().home / "claims"
