"""Manifests that engines of a tenant wrote are checked: DuckDB takes damage for the end of the file."""

import threading
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from chaos.harm import hostile
from chaos.waiting import PATIENCE_S
from pulse_pipelines.sql import engine, manifests
from pulse_pipelines.sql.manifests import Verdicts
from pulse_resources import avro_files

FILES = 3
"""Data files in each manifest."""
SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return engine.instance()


@dataclass
class Files:
    """Manifests and lists of them, on the disk."""

    folder: Path

    def manifest(self, name: str, codec: Any = "deflate") -> ManifestFile:
        output = PyArrowFileIO().new_output(str(self.folder / f"{name}-m0.avro"))
        with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, SCHEMA, output, 1, codec) as writer:
            for number in range(FILES):
                file = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"s3://pulse/{name}/{number}.parquet",
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=1,
                    file_size_in_bytes=1_000,
                )
                added = ManifestEntryStatus.ADDED
                writer.add_entry(ManifestEntry.from_args(status=added, snapshot_id=1, data_file=file))
        return writer.to_manifest_file()

    def listing(self, *listed: ManifestFile) -> str:
        path = str(self.folder / f"snap-{uuid.uuid4()}.avro")
        output = PyArrowFileIO().new_output(path)
        with write_manifest_list(2, output, 1, None, 1, "deflate") as writer:
            writer.add_manifests(list(listed))
        return path

    def listing_of(self, manifest: ManifestFile, **fields: int) -> str:
        """A list of one manifest, with these fields beside its path."""
        path, names = str(self.folder / f"snap-{uuid.uuid4()}.avro"), ["manifest_path", *fields]
        types = [StringType(), *(LongType() for _ in fields)]
        columns = [NestedField(500 + n, names[n], types[n], required=True) for n in range(len(names))]
        with AvroOutputFile[Record](PyArrowFileIO().new_output(path), Schema(*columns), "listed") as writer:
            writer.write_block([Record(manifest.manifest_path, *fields.values())])
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def head(whole: bytes) -> bytes:
    """The header of a file of one block."""
    return whole[: whole.index(whole[-16:]) + 16]


def packed(whole: bytes, change: Damage) -> bytes:
    """The file with its block changed, which is no longer packed."""
    start = head(whole)
    content = whole[len(start) : -16]
    length = hostile._read(content, 1)[1]
    row = change(zlib.decompress(content[length:], -15))
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    block = packer.compress(row) + packer.flush()
    return b"".join([start, content[:1], hostile._number(len(block)), block, whole[-16:]])


DAMAGE: dict[str, Damage] = {
    "a negative number of rows": lambda whole: head(whole) + b"\1" + whole[len(head(whole)) + 1 :],
    "no rows, and bytes": lambda whole: head(whole) + b"\0" + whole[len(head(whole)) + 1 :],
    "the header alone": head,
    "nothing": lambda _: b"",
    "a cut end": lambda whole: whole[:-30],
    "another mark": lambda whole: whole[:-3] + b"xxx",
    "a block that is not packed so": lambda whole: head(whole) + whole[len(head(whole)) : -26] + bytes(26),
    "rows that cannot be decoded": lambda whole: packed(whole, lambda row: row[:-40]),
    "rows that are others": lambda whole: packed(whole, lambda row: b"\xff" * len(row)),
    "the rows twice": lambda whole: hostile.repeated(whole, 2),
    "a bomb": lambda whole: hostile.avro(head(whole), 80 * 2**20),
}


@pytest.mark.parametrize("same_length", [True, False])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_manifest_below_a_sound_list_is_named(
    database: duckdb.DuckDBPyConnection, files: Files, case: str, same_length: bool
) -> None:
    whole, damaged = files.manifest("whole"), files.manifest("damaged")
    path = Path(damaged.manifest_path)
    content = DAMAGE[case](path.read_bytes())
    path.write_bytes(content)
    if same_length:
        damaged[1] = len(content)
    with pytest.raises(ValueError, match=r"its manifest .*damaged-m0.avro' cannot be read: "):
        manifests.check(database, files.listing(whole, damaged), ())


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_whole_manifests_are_checked_once(
    database: duckdb.DuckDBPyConnection, files: Files, codec: str
) -> None:
    first, second = files.manifest("a", codec), files.manifest("b", codec)
    marks = manifests.check(database, files.listing(first, second), ())
    assert len(set(marks)) == 2
    Path(first.manifest_path).unlink()
    assert manifests.check(database, files.listing(first, second), marks[:1]) == marks[1:]
    with pytest.raises(ValueError, match="there is no manifest at"):
        manifests.check(database, files.listing(first, second), marks[1:])
    first[1] += 1
    with pytest.raises(ValueError, match="there is no manifest at"):
        manifests.check(database, files.listing(first, second), marks)


class Fetching:
    """Reads manifests, and notes how many are being read: each waits until so many are."""

    def __init__(self, together: int) -> None:
        self._barrier, self._lock = threading.Barrier(together), threading.Lock()
        self._now = self.most = 0

    def read(self, database: duckdb.DuckDBPyConnection, location: str, kind: str) -> bytes:
        if kind != "manifest":
            return Path(location).read_bytes()
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._barrier.wait(PATIENCE_S)
        with self._lock:
            self._now -= 1
        return Path(location).read_bytes()


@pytest.mark.parametrize("together", [1, manifests.AT_ONCE])
def test_a_few_manifests_are_fetched_at_once(
    database: duckdb.DuckDBPyConnection, files: Files, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """So many, or as many as have the permitted bytes; their order is that of the list."""
    manifest_files, fetching = (
        [files.manifest(f"m{n}") for n in range(2 * manifests.AT_ONCE)],
        Fetching(together),
    )
    listing = files.listing(*manifest_files)
    expected = manifests.check(database, listing, ())
    monkeypatch.setattr(manifests, "_read", fetching.read)
    if together == 1:
        monkeypatch.setattr(manifests, "AHEAD", manifest_files[0].manifest_length)
    assert manifests.check(database, listing, ()) == expected
    assert fetching.most == together


def test_a_codec_that_duckdb_lacks_is_named(database: duckdb.DuckDBPyConnection, files: Files) -> None:
    with pytest.raises(ValueError, match=r"a-m0.avro' cannot be read: .* unknown codec"):
        manifests.check(database, files.listing(files.manifest("a", "zstandard")), ())


@pytest.mark.parametrize("spelling", ["added_files_count", "added_data_files_count"])
def test_files_are_counted_as_engines_spell_it(
    database: duckdb.DuckDBPyConnection, files: Files, spelling: str
) -> None:
    manifest = files.manifest("a")
    other_counts = {spelling.replace("added", kind): 0 for kind in ("existing", "deleted")}
    assert manifests.check(database, files.listing_of(manifest, **{spelling: FILES}, **other_counts), ())
    with pytest.raises(ValueError, match="it has 3 files, and 4 by the list"):
        manifests.check(database, files.listing_of(manifest, **{spelling: FILES + 1}, **other_counts), ())
    assert manifests.check(database, files.listing_of(manifest, **{spelling: FILES + 1}), ()), "not counted"


def test_the_total_size_and_number_of_manifests_are_limited(
    database: duckdb.DuckDBPyConnection, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = files.manifest("a"), files.manifest("b")
    listing = files.listing(first, second)
    _, size = avro_files.count_declared_rows(Path(first.manifest_path).read_bytes())
    monkeypatch.setattr(manifests, "LARGEST", 2 * size)
    assert manifests.check(database, listing, ())
    monkeypatch.setattr(manifests, "LARGEST", 2 * size - 1)
    with pytest.raises(ValueError, match=f"become more than {2 * size - 1:,} bytes"):
        manifests.check(database, listing, ())
    monkeypatch.setattr(manifests, "MOST", 1)
    with pytest.raises(ValueError, match="2 manifests, and 1 are permitted"):
        manifests.check(database, listing, ())


@pytest.mark.parametrize("name", ["a*", "a?", "a[b]"])
def test_a_manifest_named_like_a_pattern_is_refused(
    database: duckdb.DuckDBPyConnection, files: Files, name: str
) -> None:
    with pytest.raises(ValueError, match="list of manifests as a pattern"):
        manifests.check(database, f"s3://pulse/iceberg/t/metadata/{name}.avro", ())
    with pytest.raises(ValueError, match="manifest as a pattern"):
        manifests.check(database, files.listing(files.manifest(name)), ())


def test_verdicts_last_a_while() -> None:
    verdicts, old, new = Verdicts(), "0" * 16, "1" * 16
    verdicts.add("s3://a/", [old], now=0)
    verdicts.add("s3://a/", [new], now=manifests.LIFETIME_S)
    assert verdicts.of("s3://a/", now=manifests.LIFETIME_S) == [old, new]
    assert verdicts.of("s3://b/", now=0) == []
    assert verdicts.of("s3://a/", now=manifests.LIFETIME_S + 1) == [new]
    assert verdicts.of("s3://a/", now=2 * manifests.LIFETIME_S + 1) == []


@pytest.mark.parametrize("answered", [None, 7, "0" * 16, {"a": 1}, [7, None, "short", "0" * 17]])
def test_an_invalid_answer_of_a_process_is_not_a_verdict(answered: object) -> None:
    verdicts = Verdicts()
    verdicts.add("s3://a/", answered, now=0)
    assert verdicts.of("s3://a/", now=0) == []


def test_the_table_that_was_read_least_lately_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "REMEMBERED", 2)
    verdicts = Verdicts()
    for folder in "abac":
        verdicts.add(folder, [folder * 16], now=0)
    assert [folder for folder in "abc" if verdicts.of(folder, now=0)] == ["a", "c"]
