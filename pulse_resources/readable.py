"""Readable: whether a table's metadata and manifests are whole, asked before other engines read them.

A manifest that is no Avro ends DuckDB's process, and with it the work for every tenant that goes on there; of
one that is cut off Spark reads what is left, and says nothing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from pulse_resources import iceberg
from pulse_resources.errors import Gone, PulseError, Terminal


def check_table(location: str) -> None:
    """Check the manifests of the current snapshot of the table whose metadata is at `location`.

    Raises:
        Terminal: the metadata, or a manifest, is gone or damaged.
        OSError: the object store failed.
    """
    with damage_explained(location):
        table = iceberg.load_table(("checked", "table"), location)
    check_snapshot(table)


def check_snapshot(table: Table) -> None:
    """Check the manifests of the table's current snapshot; as `check_table`."""
    with damage_explained(table.metadata_location):
        snapshot = table.current_snapshot()
        check(snapshot.manifests(table.io) if snapshot else [], table.io)


@contextmanager
def damage_explained(location: str) -> Iterator[None]:
    """What damaged bytes raise, which is anything, as an error of Pulse.

    Args:
        location: of the table's metadata.

    Raises:
        Terminal: they are damaged.
    """
    try:
        yield
    except (PulseError, OSError):  # TimeoutError and FileNotFoundError among them
        raise
    except Exception as error:
        raise Terminal(
            f"the table's metadata, or a manifest, is damaged: {error}",
            fix="`pulse reconcile` tells what is left; put the file back from a backup",
            location=location,
        ) from error


def check(manifests: Iterable[ManifestFile], io: FileIO) -> None:
    """Check manifests.

    Raises:
        Gone: one is.
        Terminal: one is damaged.
        OSError: the object store failed.
    """
    for manifest in manifests:
        try:
            manifest.fetch_manifest_entry(io, discard_deleted=False)
        except FileNotFoundError as error:
            raise Gone("a manifest of the table is gone", file=manifest.manifest_path) from error
        except OSError:
            raise
        except Exception as error:  # of whatever kind: its bytes are taken for lengths and types
            raise Terminal(
                f"a manifest of the table is damaged: {error}", file=manifest.manifest_path
            ) from error
