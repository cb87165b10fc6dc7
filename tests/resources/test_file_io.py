"""pyiceberg's file I/O reads and writes by the client that the process has at that moment."""

from pathlib import Path

import pyarrow.fs as pafs
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, read_manifest_list, write_manifest_list
from support.counting import count_calls

from chaos.harm import hostile
from pulse_resources.iceberg import foreign_io
from pulse_resources.iceberg.file_io import file_io_of
from pulse_resources.iceberg.foreign_io import foreign_file_io


def test_a_client_that_is_replaced_is_used_from_then_on(tmp_path: Path) -> None:
    """As after a change of keys or settings: what was made before does not keep the old one."""
    stores = {name: tmp_path / name for name in ("old", "new")}
    for store in stores.values():
        store.mkdir()
    used = "old"
    io = file_io_of(lambda: pafs.SubTreeFileSystem(str(stores[used]), pafs.LocalFileSystem()))
    for used in stores:
        with io.new_output("s3://file").create() as sink:
            sink.write(used.encode())
    assert {name: (store / "file").read_text() for name, store in stores.items()} == {
        "old": "old",
        "new": "new",
    }


def entries(folder: Path, number: int) -> str:
    """A manifest list of so many entries; returns its location below the folder."""
    manifest = ManifestFile.from_args(
        manifest_path="s3://b/m.avro",
        manifest_length=1,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
    )
    output = PyArrowFileIO().new_output(str(folder / "b/list.avro"))
    with write_manifest_list(2, output, 1, None, 1, "deflate") as writer:
        writer.add_manifests([manifest])
    path = folder / "b/list.avro"
    path.write_bytes(hostile.repeated(path.read_bytes(), number))
    return "s3://b/list.avro"


def foreign(folder: Path) -> PyArrowFileIO:
    return foreign_file_io(pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem()))


def test_a_list_of_others_is_read_as_it_is(tmp_path: Path) -> None:
    read = list(read_manifest_list(foreign(tmp_path).new_input(entries(tmp_path, 3))))
    assert [manifest.manifest_path for manifest in read] == ["s3://b/m.avro"] * 3
    with pytest.raises(FileNotFoundError):
        foreign(tmp_path).new_input("s3://b/none.avro").open()


def test_a_foreign_manifest_list_is_weighed_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """280 kB of a million entries would take half a gigabyte and twenty seconds."""
    location = entries(tmp_path, 1_000_000)

    def read() -> None:
        with pytest.raises(ValueError, match=match):
            list(read_manifest_list(foreign(tmp_path).new_input(location)))

    match = "has more than 200,000 entries"
    assert count_calls(read) < 10_000
    monkeypatch.setattr(foreign_io, "MOST_ROWS", 2_000_000)
    monkeypatch.setattr(foreign_io, "UNPACKED", 1_000_000)
    match = "becomes more than 1,000,000 bytes"
    read()
    monkeypatch.setattr(foreign_io, "LARGEST", 1_000)
    match = "has more than 1,000 bytes"
    read()
