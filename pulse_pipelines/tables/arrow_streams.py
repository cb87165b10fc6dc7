"""Small tables as bytes: Arrow streams, compressed."""

import pyarrow as pa


def packed(table: pa.Table) -> bytes:
    """A table as a stream."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpacked(stream: bytes) -> pa.Table:
    """The table of a stream."""
    return pa.ipc.open_stream(stream).read_all()
