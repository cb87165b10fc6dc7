"""The object store as a listing of S3 shows it, with empty objects that stand for folders."""

from pulse_resources import object_store


def names(folder: str) -> list[str]:
    """Names of all objects below a folder, relative to it."""
    bucket, _, prefix = f"{folder}/".removeprefix("s3://").partition("/")
    pages = object_store.s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [entry["Key"].removeprefix(prefix) for page in pages for entry in page.get("Contents", ())]
