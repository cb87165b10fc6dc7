"""The object store as a listing of S3 shows it, with empty objects that stand for folders."""

from pulse_resources import s3_client, store_key
from pulse_resources.settings import load_settings


def names(folder: str) -> list[str]:
    """Names of all objects below a folder, relative to it."""
    store = load_settings().object_store
    key = store_key.of(store)
    client = s3_client.client(
        store.endpoint, store.region, key.access_key, key.secret_key, key.session_token, store.ca_file
    )
    bucket, _, prefix = f"{folder}/".removeprefix("s3://").partition("/")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", ())]
