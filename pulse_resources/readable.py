"""Readable: tables read while they go on, and whether their metadata and manifests are whole.

That is asked before other engines read them. A manifest that is no Avro ends DuckDB's process, and with it
the work for every tenant that goes on there; of one cut off Spark reads what is left, and says nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from pulse_resources import iceberg
from pulse_resources.errors import Gone, PulseError, Terminal

LOOKS = 10
"""At a table that keeps going on while its files are read."""

_Seen = TypeVar("_Seen")
_Made = TypeVar("_Made")


def as_it_is(
    use: Callable[[_Seen], _Made], seen: _Seen, look: Callable[[], _Seen], location: Callable[[_Seen], str]
) -> _Made:
    """What `use` makes of a table as it was seen; looked at again where it has gone on and files are gone.

    An erasure deletes what leads to the erased once the table's pointer has left it, whoever reads there.

    Args:
        use: reads files of the table; begun anew, so it commits nothing.
        seen: the table's pointer, and what has to be of the same moment.
        look: reads them anew.
        location: of the table's metadata, in what was seen.

    Raises:
        Gone, FileNotFoundError: a file is gone though the table has not gone on.
    """
    for _ in range(LOOKS):
        try:
            return use(seen)
        except (Gone, FileNotFoundError):
            before, seen = seen, look()
            if location(seen) == location(before):
                raise
    return use(seen)


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
