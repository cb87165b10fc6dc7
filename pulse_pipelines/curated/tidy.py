"""Tidy: remove from a curated table's folder what nothing reaches any more.

Days are replaced again and again, and each time leaves files behind. They are removed right after a commit:
whoever staged something before it did so on metadata that is no longer current and can never become so, and
what was staged after it is young. So an old object that the table does not reach can go.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow.fs as pafs
from pyiceberg.table import Table

from pulse_resources import iceberg, object_store

EVERY = 50
"""Commits of a table between two searches."""
MIN_AGE = timedelta(days=1)


def due(location: str) -> Table | None:
    """The table whose metadata was committed just now, when it is time to tidy it."""
    table = iceberg.load_table(("curated", "table"), location)
    snapshot = table.current_snapshot()
    return table if snapshot and (snapshot.sequence_number or 0) % EVERY == 0 else None


def tidy(table: Table, min_age: timedelta = MIN_AGE) -> int:
    """Remove unreached objects that are old enough; how many there were.

    Args:
        table: as it was committed a moment ago.

    Raises:
        OSError: the object store failed; what was removed was not reached.
    """
    store, reached = object_store.file_system(), set(_reached(table))
    folder = pafs.FileSelector(object_store.key(table.location()), recursive=True)
    newest = datetime.now(UTC) - min_age
    removed = 0
    for info in store.get_file_info(folder):
        old = info.type is pafs.FileType.File and info.mtime is not None and info.mtime <= newest
        if old and f"s3://{info.path}" not in reached:
            store.delete_file(info.path)
            removed += 1
    return removed


def _reached(table: Table) -> Iterator[str]:
    """What the table's snapshots, and the metadata files that its log names, are made of."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path
