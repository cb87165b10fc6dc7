"""Readability of tables: consistent reads of changing tables, and checks of metadata and manifests.

Metadata is checked before other engines read it. A manifest that is not valid Avro crashes DuckDB's process
and with it the work of every tenant there; of a truncated one Spark silently reads the remaining part.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from pulse_resources import iceberg
from pulse_resources.errors import FileGone, PulseError, Terminal

LOOKS = 10
"""Attempts to read a table that keeps changing while its files are read."""

_Pointer = TypeVar("_Pointer")
_Made = TypeVar("_Made")


def as_it_is(
    use: Callable[[_Pointer], _Made],
    pointer: _Pointer,
    reload: Callable[[], _Pointer],
    location: Callable[[_Pointer], str],
) -> _Made:
    """Result of `use` on a table, which is loaded again when it has changed and files are gone.

        An erasure deletes files as soon as the table's pointer has left them, even while they are read.

        Args:
            use: reads files of the table; may be repeated, so it must not commit.
    pointer: the table's pointer, and what has to be of the same moment.
            look: reads `pointer` again.
            location: location of the table's metadata in `pointer`.

        Raises:
            Gone, FileNotFoundError: a file is missing although the table has not changed.
    """
    for _ in range(LOOKS):
        try:
            return use(pointer)
        except (FileGone, FileNotFoundError):
            before, pointer = pointer, reload()
            if location(pointer) == location(before):
                raise
    return use(pointer)


def check_table(location: str) -> None:
    """Check the manifests of the current snapshot of the table with metadata at `location`.

    Raises:
        Terminal: the metadata or a manifest is missing or damaged.
        OSError: the object store failed.
    """
    with damage_explained(location):
        table = iceberg.load_table(("checked", "table"), location)
    check_snapshot(table)


def check_snapshot(table: Table) -> None:
    """Check the manifests of the table's current snapshot; raises as `check_table`."""
    with damage_explained(table.metadata_location):
        snapshot = table.current_snapshot()
        check(snapshot.manifests(table.io) if snapshot else [], table.io)


@contextmanager
def damage_explained(location: str) -> Iterator[None]:
    """Convert any exception that damaged bytes cause into an error of Pulse.

    Args:
        location: location of the table's metadata.

    Raises:
        Terminal: the bytes are damaged.
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
        Gone: a manifest is missing.
        Terminal: a manifest is damaged.
        OSError: the object store failed.
    """
    for manifest in manifests:
        try:
            manifest.fetch_manifest_entry(io, discard_deleted=False)
        except FileNotFoundError as error:
            raise FileGone("a manifest of the table is gone", file=manifest.manifest_path) from error
        except OSError:
            raise
        except Exception as error:  # any type: damaged bytes are taken for lengths and types
            raise Terminal(
                f"a manifest of the table is damaged: {error}", file=manifest.manifest_path
            ) from error
