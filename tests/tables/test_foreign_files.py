"""Files of other writers, as they are read to be merged or to erase in them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, FileFormat

from pulse_pipelines.tables import foreign_files


def test_a_page_that_differs_from_its_checksum_is_not_rewritten(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"id": ["N1", "N2", "N3"]})  # of N2 no statistics know
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    for damage, fails in ((b"N2", False), (b"N7", True)):
        (tmp_path / "bucket").mkdir(exist_ok=True)
        (tmp_path / "bucket" / "x.parquet").write_bytes(content.replace(b"N2", damage))
        file = DataFile.from_args(
            file_path="s3://bucket/x.parquet",
            file_format=FileFormat.PARQUET,
            record_count=3,
            file_size_in_bytes=len(content),
        )
        store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        with foreign_files.opened(store, file) as parquet:
            if fails:
                with pytest.raises(OSError, match="CRC"):
                    parquet.read()
            else:
                assert parquet.read() == table
