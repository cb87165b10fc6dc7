"""pyiceberg's file I/O for manifests that other engines wrote: weighed before their rows are decoded.

280 kB of a million rows would take half a gigabyte, and 20 seconds.
"""

import io

import pyarrow.fs as pafs
from pyiceberg.io import InputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from typing_extensions import override

from pulse_resources import avro_files

MOST_ROWS = 200_000
"""Rows of a manifest, or of a list of them; engines write a tenth. Decoded they have some hundred MB."""
LARGEST = 64 * 1024 * 1024
"""Bytes of such a file; engines write 8 MB ..."""
UNPACKED = 512 * 1024 * 1024
"""... and once it is unpacked."""


def foreign_file_io(client: pafs.S3FileSystem) -> PyArrowFileIO:
    """File I/O that opens every path by this client, whatever its scheme: none leads to the local disk.

    To open what would take too much memory or time is a ValueError.
    """
    file_io = _ForeignFileIO()
    file_io.fs_by_scheme = lambda scheme, netloc: client
    return file_io


class _ForeignFileIO(PyArrowFileIO):
    @override
    def new_input(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _ForeignFile(location, path, self.fs_by_scheme(scheme, netloc))


class _ForeignFile(PyArrowFile):
    @override
    def open(self, seekable: bool = True) -> InputStream:
        with super().open(seekable) as source:
            content = source.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"a manifest, or a list of them, has more than {LARGEST:,} bytes")
        avro_files.check_size(content, rows=MOST_ROWS, unpacked=UNPACKED)
        return io.BytesIO(content)
