"""pyiceberg's file I/O over a client of the object store, which decodes safely."""

from collections.abc import Callable

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO

from pulse_resources.iceberg import avro_codecs, avro_decoder

avro_decoder.install()
avro_codecs.install()


def file_io_of(client: Callable[[], pafs.S3FileSystem]) -> PyArrowFileIO:
    """File I/O that opens every path by this client, whatever its scheme: none leads to the local disk.

    Args:
        client: asked at each path, since a process's client is replaced when its settings or keys are.
    """
    io = PyArrowFileIO()
    io.fs_by_scheme = lambda scheme, netloc: client()
    return io
