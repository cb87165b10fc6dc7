"""Iceberg metadata files edited as JSON.

For changes that pyiceberg makes wrongly (children of an expired snapshot lose their parent id, so that
history seems to begin there), or at a cost that grows with history.
"""

import uuid
from collections.abc import Collection, Iterable
from typing import Any

import orjson
import pyarrow.fs as pafs

from pulse_resources import object_store
from pulse_resources.errors import FileGone
from pulse_resources.iceberg.document_weight import LARGEST, check_weight

Document = dict[str, Any]
FOREIGN = 2
"""Weight of a metadata file that other engines write, as a share of what is parsed elsewhere: it is read in a
process of its own, which then takes two thirds of its memory, and may have grown beyond that limit."""
_LOG = "metadata-log"


def read(location: str, store: pafs.S3FileSystem | None = None) -> Document:
    """Read a metadata file.

    Args:
        store: a client with a key of its own, for a table that other engines write; None: this process's.

    Raises:
        Gone: it does not exist.
        TooLarge: other engines wrote it, and it would cost too much memory or time.
        OSError: the object store failed.
    """
    try:
        with (store or object_store.file_system()).open_input_file(object_store.key(location)) as source:
            content = source.read(FOREIGN * LARGEST + 1) if store else source.read()
    except FileNotFoundError as error:
        raise FileGone("the table's metadata file is gone", location=location) from error
    if store:
        check_weight(content, FOREIGN)
    document: Document = orjson.loads(content)
    return document


def folder(location: str) -> str:
    """The folder of the table that a metadata file belongs to."""
    return location.rpartition("/metadata/")[0]


def version(location: str) -> int | None:
    """Version number at the start of a metadata file's name; each commit increments it."""
    name = location.rpartition("/")[2]
    number = name.partition("-")[0]
    return int(number) if name.endswith(".metadata.json") and number.isdigit() else None


def newest_first(paths: Iterable[str]) -> list[str]:
    """The metadata files among these paths, those of the highest version first."""
    versions = {path: number for path in paths if (number := version(path)) is not None}
    return sorted(versions, key=lambda path: (versions[path], path), reverse=True)


def log(document: Document) -> list[str]:
    """Locations of the previous metadata files, as far as the log names them."""
    return [entry["metadata-file"] for entry in document.get(_LOG, ())]


def write_next(
    document: Document, location: str, *, with_log: bool = True, store: pafs.S3FileSystem | None = None
) -> str:
    """Write a changed document as the successor of the metadata at `location`; nothing points at it yet.

    Args:
        with_log: list the previous metadata files; otherwise none of them is reachable.
        store: as for `read`.

    Returns:
        Its location, in the same folder.

    Raises:
        OSError: the object store failed.
    """
    keep = int(document.get("properties", {}).get("write.metadata.previous-versions-max", 100))
    entry = {"metadata-file": location, "timestamp-ms": document["last-updated-ms"]}
    following = document | {_LOG: [*document.get(_LOG, ()), entry][-keep:] if with_log else []}
    beside, number = location.rpartition("/")[0], (version(location) or 0) + 1
    path = f"{beside}/{number:05d}-{uuid.uuid4()}.metadata.json"
    write(following, path, store)
    return path


def write(document: Document, location: str, store: pafs.S3FileSystem | None = None) -> None:
    """Write a metadata file, by `store` as for `read`. Raises OSError: the object store failed."""
    # Raw bytes: by default Arrow may compress what it writes.
    files = store or object_store.file_system()
    with files.open_output_stream(object_store.key(location), compression=None) as sink:
        sink.write(orjson.dumps(document))


def current_only(document: Document) -> Document:
    """Document without history: only the snapshots that branches and tags point at, and no log."""
    referenced = {ref["snapshot-id"] for ref in document.get("refs", {}).values()}
    referenced.add(document.get("current-snapshot-id"))
    snapshots = [
        snapshot for snapshot in document.get("snapshots", ()) if snapshot["snapshot-id"] in referenced
    ]
    return document | {"snapshots": snapshots, "snapshot-log": document.get("snapshot-log", [])[-1:]}


def followed(document: Document, before: Document, after: Document) -> Document:
    """Apply a change of a partial document, which lacks some of the history, to the full one.

    Args:
        before, after: the partial document before and after the change.
    """
    changed = {snapshot["snapshot-id"]: snapshot for snapshot in after.get("snapshots", ())}
    removed = {snapshot["snapshot-id"] for snapshot in before.get("snapshots", ())} - changed.keys()
    snapshots = {
        snapshot["snapshot-id"]: snapshot
        for snapshot in document.get("snapshots", ())
        if snapshot["snapshot-id"] not in removed
    }
    previous_log = before.get("snapshot-log", [])
    log = [entry for entry in document.get("snapshot-log", ()) if entry["snapshot-id"] not in removed]
    log += [entry for entry in after.get("snapshot-log", ()) if entry not in previous_log]
    return after | {"snapshots": list((snapshots | changed).values()), "snapshot-log": log}


def without_snapshots(document: Document, removed: Collection[int]) -> Document:
    """Document without some snapshots and references to them; their successors keep the parent id."""
    remaining: Document = {"snapshots": [s for s in document["snapshots"] if s["snapshot-id"] not in removed]}
    remaining["snapshot-log"] = [
        e for e in document.get("snapshot-log", ()) if e["snapshot-id"] not in removed
    ]
    remaining["refs"] = {
        n: ref for n, ref in document.get("refs", {}).items() if ref["snapshot-id"] not in removed
    }
    for part in ("statistics", "partition-statistics"):
        if part in document:
            remaining[part] = [s for s in document[part] if s["snapshot-id"] not in removed]
    return document | remaining
