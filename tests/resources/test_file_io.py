"""pyiceberg's file I/O reads and writes by the client that the process has at that moment."""

from pathlib import Path

import pyarrow.fs as pafs

from pulse_resources.iceberg.file_io import file_io_of


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
