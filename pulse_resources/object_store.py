"""The S3 object store: one client per process, the bucket, and its objects with the store's own clock."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial

import pyarrow as pa
import pyarrow.fs as pafs

from pulse_resources.faults import fail_point
from pulse_resources.settings import Settings, load_settings

DELETES = 8
"""Requests under way at a time."""


def _file_system(settings: Settings, **options: bool) -> pafs.S3FileSystem:
    store = settings.object_store
    token = store.session_token.get_secret_value() if store.session_token else None
    return file_system_of(store.access_key, store.secret_key.get_secret_value(), token, settings, **options)


def file_system_of(
    access_key: str, secret_key: str, token: str | None, settings: Settings | None = None, **options: bool
) -> pafs.S3FileSystem:
    """An S3 client of the store that signs with this key."""
    store = (settings or load_settings()).object_store
    scheme, _, address = store.endpoint.partition("://")
    return pafs.S3FileSystem(
        access_key=access_key,
        secret_key=secret_key,
        session_token=token,
        endpoint_override=address,
        scheme=scheme,
        tls_ca_file_path=str(store.ca_file) if store.ca_file else None,
        region=store.region,
        allow_delayed_open=True,  # a small object is one request instead of a multipart upload
        **options,
    )


@cache
def file_system() -> pafs.S3FileSystem:
    """The S3 client of this process; paths are `<bucket>/<key>`."""
    return _file_system(load_settings())


def key(uri: str) -> str:
    """`s3://bucket/key` as the `bucket/key` that `file_system()` takes."""
    return uri.removeprefix("s3://")


def ensure_bucket(settings: Settings) -> None:
    """Create Pulse's bucket when it is missing; safe to run again."""
    creator = _file_system(settings, allow_bucket_creation=True)
    creator.create_dir(settings.object_store.bucket, recursive=False)


def put(uri: str, content: "bytes | pa.Buffer") -> None:
    """Write one object whole."""
    fail_point("files.before_put")
    # Bytes as they are: left to itself, Arrow would compress a .gz once more.
    with file_system().open_output_stream(key(uri), compression=None) as sink:
        sink.write(content)
    fail_point("files.after_put")


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


def listed(prefix: str, store: pafs.S3FileSystem | None = None) -> Iterator[Object]:
    """Every object under a prefix, which ends where a folder does; none where there is no such folder.

    Args:
        store: a client with a key of its own; None: this process's.

    Raises:
        OSError: the object store failed.
    """
    selector = pafs.FileSelector(key(prefix), allow_not_found=True, recursive=True)
    for info in (store or file_system()).get_file_info(selector):
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
    with file_system().open_output_stream(key(f"{folder}/clock"), compression=None) as sink:
        sink.write(b"its LastModified is what upkeep compares ages with\n")
    (clock,) = [
        each for each in listed(folder) if each.name == "clock"
    ]  # listed, as what it is compared with
    return clock.modified


def delete(paths: Iterable[str], store: pafs.S3FileSystem | None = None) -> int:
    """Delete objects; one that is gone already is as good. Returns how many were asked for.

    Args:
        store: a client with a key of its own; None: this process's.

    Raises:
        OSError: the object store failed; some may be deleted.
    """
    with ThreadPoolExecutor(DELETES, thread_name_prefix="delete") as pool:
        return sum(pool.map(partial(_delete, store or file_system()), paths))


def _delete(store: pafs.S3FileSystem, path: str) -> int:
    try:
        store.delete_file(key(path))
    except FileNotFoundError:
        return 0
    return 1
