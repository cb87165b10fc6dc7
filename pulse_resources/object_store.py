"""The S3 object store: one client per process, and the bucket."""

from functools import cache

import pyarrow.fs as pafs

from pulse_resources.settings import Settings, load_settings


def _file_system(settings: Settings, **options: bool) -> pafs.S3FileSystem:
    store = settings.object_store
    scheme, _, address = store.endpoint.partition("://")
    return pafs.S3FileSystem(
        access_key=store.access_key,
        secret_key=store.secret_key.get_secret_value(),
        endpoint_override=address,
        scheme=scheme,
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
