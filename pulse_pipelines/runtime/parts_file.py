"""Parts of the definitions on disk, so that a code server that starts again need not build them all."""

import logging
import sqlite3
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import dagster

from pulse_resources.settings import load_settings

TABLE = "CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, version TEXT, packed TEXT, crc INTEGER)"
ROOT = Path(__file__).parents[2]
"""Folder of the packages."""
_log = logging.getLogger("dagster.code_server")


@dataclass(frozen=True)
class Part:
    version: str
    """What it was built from, the code included."""
    packed: str
    """Snapshots of its assets, and of their checks: two lists, serialized and compressed, in one line."""


def code_version() -> str:
    """Hash of what parts depend on besides the registry: the code, the settings, and Dagster."""
    digest = sha256(
        f"{dagster.__version__} {load_settings().model_dump_json()}".encode()
    )  # secrets are masked
    for package in ("pulse_pipelines", "pulse_resources"):
        for file in sorted((ROOT / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


class PartsFile:
    """A file of parts. A damaged file is started again; a file that cannot be written is not used."""

    def __init__(self, path: Path) -> None:
        """Args:
        path: in a folder that others cannot write to; there is a file for each version of Dagster.
        """
        self._path = path.with_name(f"{path.stem}-{dagster.__version__}{path.suffix}")

    def read(self) -> dict[str, Part]:
        """All parts, by name; none if the file cannot be read."""
        try:
            with self._opened() as file:
                rows = file.execute("SELECT name, version, packed, crc FROM parts").fetchall()
            if any(zlib.crc32(packed.encode()) != crc for _, _, packed, crc in rows):
                raise OSError("a part is not as it was written")
            return {name: Part(version, packed) for name, version, packed, _ in rows}
        except (sqlite3.Error, OSError) as error:
            _log.warning("The built definitions in %s cannot be read: %s", self._path, error)
            self._path.unlink(missing_ok=True)
            return {}

    def write(self, built: Mapping[str, Part], removed: Iterable[str] = ()) -> None:
        """Add and replace parts, and delete those in `removed`."""
        rows = [
            (name, part.version, part.packed, zlib.crc32(part.packed.encode()))
            for name, part in built.items()
        ]
        try:
            with self._opened() as file, file:
                file.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", rows)
                file.executemany("DELETE FROM parts WHERE name = ?", [(name,) for name in removed])
        except (sqlite3.Error, OSError) as error:
            _log.warning("The built definitions could not be kept in %s: %s", self._path, error)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path)) as file:
            file.execute(TABLE)
            yield file


def packed(text: str) -> str:
    """Compress a text of JSON to a tenth or so, in one line."""
    return b64encode(zlib.compress(text.encode(), 1)).decode()


def unpacked(line: str) -> str:
    """The text that `packed` took. Raises ValueError, zlib.error."""
    return zlib.decompress(b64decode(line)).decode()
