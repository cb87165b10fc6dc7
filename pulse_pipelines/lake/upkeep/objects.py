"""Objects of the store: listed, and deleted, with the store's own clock beside them."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow.fs as pafs

from pulse_resources import object_store
from pulse_resources.settings import load_settings

DELETES = 8
"""Requests under way at a time."""


@dataclass(frozen=True)
class Object:
    """An object as a listing shows it; `modified` is by the store's clock."""

    path: str
    """s3://bucket/key"""
    bytes: int
    modified: datetime

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def listed(prefix: str) -> Iterator[Object]:
    """Every object under a prefix, which ends where a folder does; none where there is no such folder.

    Raises:
        OSError: the object store failed.
    """
    selector = pafs.FileSelector(object_store.key(prefix), allow_not_found=True, recursive=True)
    for info in object_store.file_system().get_file_info(selector):
        if info.type is pafs.FileType.File:
            yield Object(f"s3://{info.path}", info.size, info.mtime or datetime.max.replace(tzinfo=UTC))


def aged(prefix: str, min_age: timedelta) -> list[Object]:
    """Objects under a prefix that are as old, measured by the store's own clock alone.

    Raises:
        OSError: the object store failed.
    """
    if not min_age:
        return list(listed(prefix))
    newest = store_time() - min_age
    return [each for each in listed(prefix) if each.modified <= newest]


def store_time() -> datetime:
    """What the store's own clock says: when it took an object that is written now.

    Raises:
        OSError: the object store failed.
    """
    folder = f"s3://{load_settings().object_store.bucket}/upkeep"
    with object_store.file_system().open_output_stream(
        object_store.key(f"{folder}/clock"), compression=None
    ) as sink:
        sink.write(b"its LastModified is what upkeep compares ages with\n")
    (clock,) = [
        each for each in listed(folder) if each.name == "clock"
    ]  # listed, as what it is compared with
    return clock.modified


def delete(paths: Iterable[str]) -> int:
    """Delete objects; one that is gone already is as good. Returns how many were asked for.

    Raises:
        OSError: the object store failed; some may be deleted.
    """
    with ThreadPoolExecutor(DELETES, thread_name_prefix="delete") as pool:
        return sum(pool.map(partial(_delete, object_store.file_system()), paths))


def _delete(store: pafs.S3FileSystem, path: str) -> int:
    try:
        store.delete_file(object_store.key(path))
    except FileNotFoundError:
        return 0
    return 1
