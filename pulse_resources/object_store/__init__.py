"""S3 object store: one client per process, the bucket, and its objects with the store's own clock."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from pulse_resources.object_store import s3_client, small_put
from pulse_resources.process.faults import fail_point
from pulse_resources.resettable import Resettable
from pulse_resources.settings import Settings, load_settings
from pulse_resources.store_keys import store_key
from pulse_resources.store_keys.store_key import StoreKey

DELETES = 1_000
"""Objects in a request that deletes."""


def _file_system(settings: Settings, **options: bool) -> pafs.S3FileSystem:
    store = settings.object_store
    # Without a key Arrow finds that of the environment, and renews it.
    return file_system_of(None if store.by_role else store_key.of(store), settings, **options)


def file_system_of(
    key: StoreKey | None, settings: Settings | None = None, **options: bool
) -> pafs.S3FileSystem:
    """S3 client of the store with this key; None: with that of the environment."""
    store = (settings or load_settings()).object_store
    scheme, _, address = store.endpoint.partition("://")
    return pafs.S3FileSystem(
        access_key=key and key.access_key,
        secret_key=key and key.secret_key,
        session_token=key and key.session_token,
        endpoint_override=address,
        scheme=scheme,
        tls_ca_file_path=str(store.ca_file) if store.ca_file else None,
        region=store.region,
        allow_delayed_open=True,  # a small object is one request instead of a multipart upload
        **options,
    )


@Resettable
def file_system() -> pafs.S3FileSystem:
    """S3 client of this process; paths are `<bucket>/<key>`."""
    return _file_system(load_settings())


def key(uri: str) -> str:
    """Convert `s3://bucket/key` to the `bucket/key` that `file_system()` takes."""
    return uri.removeprefix("s3://")


def ensure_bucket(settings: Settings) -> None:
    """Create Pulse's bucket if it is missing; idempotent."""
    creator = _file_system(settings, allow_bucket_creation=True)
    creator.create_dir(settings.object_store.bucket, recursive=False)


def put(uri: str, content: "bytes | pa.Buffer") -> None:
    """Write one whole object."""
    fail_point("files.before_put")
    if not small_put.put(key(uri), memoryview(content)):
        # Raw bytes: by default Arrow would compress a .gz again.
        with file_system().open_output_stream(key(uri), compression=None) as sink:
            sink.write(content)
    fail_point("files.after_put")


@dataclass(frozen=True)
class Object:
    """Entry of a listing; `modified` is by the store's clock."""

    path: str
    """s3://bucket/key"""
    bytes: int
    modified: datetime

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def listed(prefix: str, store: pafs.S3FileSystem | None = None) -> Iterator[Object]:
    """All objects under a prefix, which must end at a folder boundary; none if the folder does not exist.

    Args:
        store: a client with a key of its own; None: this process's.

    Raises:
        OSError: the object store failed.
    """
    selector = pafs.FileSelector(key(prefix), allow_not_found=True, recursive=True)
    for info in (store or file_system()).get_file_info(selector):
        if info.type is pafs.FileType.File:
            yield Object(f"s3://{info.path}", info.size, info.mtime or datetime.max.replace(tzinfo=UTC))


def pages(prefix: str, key: StoreKey) -> Iterator[list[str]]:
    """Paths of all objects under a prefix, in parts of `DELETES`, each listed when it is asked for.

    Raises:
        OSError: the object store failed.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # a quarter of a second

    bucket, _, name = prefix.removeprefix("s3://").partition("/")
    listing = s3(key).get_paginator("list_objects_v2")
    try:
        for page in listing.paginate(
            Bucket=bucket, Prefix=f"{name}/", PaginationConfig={"PageSize": DELETES}
        ):
            yield [f"s3://{bucket}/{entry['Key']}" for entry in page.get("Contents", ())]
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"cannot list objects: {error}") from error


def folders(prefix: str, store: pafs.S3FileSystem | None = None) -> list[str]:
    """Locations of the folders directly below a prefix, sorted. Raises OSError: the object store failed."""
    selector = pafs.FileSelector(key(prefix), allow_not_found=True)
    entries = (store or file_system()).get_file_info(selector)
    return sorted(f"s3://{info.path}" for info in entries if info.type is pafs.FileType.Directory)


def aged(prefix: str, min_age: timedelta) -> list[Object]:
    """Objects under a prefix that are at least `min_age` old, by the store's own clock.

    Raises:
        OSError: the object store failed.
    """
    if not min_age:
        return list(listed(prefix))
    newest = store_time() - min_age
    return [stored_object for stored_object in listed(prefix) if stored_object.modified <= newest]


def store_time() -> datetime:
    """Current time of the store's clock, from an object written now.

    Raises:
        OSError: the object store failed.
    """
    folder = f"s3://{load_settings().object_store.bucket}/upkeep"
    with file_system().open_output_stream(key(f"{folder}/clock"), compression=None) as sink:
        sink.write(b"its LastModified is what upkeep compares ages with\n")
    (clock,) = [
        stored_object for stored_object in listed(folder) if stored_object.name == "clock"
    ]  # from a listing, as the times it is compared with
    return clock.modified


def s3(key: StoreKey | None = None) -> Any:
    """botocore's client of the store, which shows and does what Arrow's hides.

    Args:
        key: None: this process's.

    Raises:
        UserError: this process has no key.
    """
    store = load_settings().object_store
    key_pair = key or store_key.of(store)
    return s3_client.client(
        store.endpoint,
        store.region,
        key_pair.access_key,
        key_pair.secret_key,
        key_pair.session_token,
        store.ca_file,
    )


def delete(paths: Iterable[str], key: StoreKey | None = None) -> int:
    """Delete objects; missing ones are ignored. Returns how many deletions were requested.

    Arrow's client would put an empty object in the place of each one's folder, whose name may be a value.

    Args:
        key: None: this process's.

    Raises:
        OSError: the object store failed; some may be deleted.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # a quarter of a second

    by_bucket: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        bucket, _, name = path.removeprefix("s3://").partition("/")
        by_bucket[bucket].append(name)
    if not by_bucket:
        return 0
    try:
        client = s3(key)
        for bucket, names in by_bucket.items():
            for start in range(0, len(names), DELETES):
                keys = [{"Key": name} for name in names[start : start + DELETES]]
                answer = client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
                for failure in answer.get("Errors", ()):
                    raise OSError(
                        f"cannot delete {failure.get('Key')}: {failure.get('Code')}, {failure.get('Message')}"
                    )
    except (BotoCoreError, ClientError) as error:
        raise OSError(f"cannot delete objects: {error}") from error
    return sum(map(len, by_bucket.values()))
