"""pyiceberg's file I/O over one client of the object store."""

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO


def file_io_of(store: pafs.S3FileSystem) -> PyArrowFileIO:
    """File I/O that opens every path by this client, whatever its scheme: none leads to the local disk."""
    io = PyArrowFileIO()
    io.fs_by_scheme = lambda scheme, netloc: store
    return io
