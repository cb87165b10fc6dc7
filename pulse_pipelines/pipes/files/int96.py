"""INT96: timestamps of older writers of Parquet, which reach further than 64 bits of nanoseconds do.

They are read twice: in microseconds, which reach beyond the years 1 to 9999, and in nanoseconds, which are
right modulo 2^64: both together give all digits. Within lists and structs the last three are left out.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

UNIT = "us"
"""As `coerce_int96_timestamp_unit` has it: what `with_digits` takes."""


def digits(local: Any, file: pq.ParquetFile, rows: int) -> Iterator[Mapping[str, int | None]]:
    """The nanoseconds of a file's columns of INT96, modulo 2^64, row by row.

    Args:
        rows: that are read at a time.
    """
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    names = [
        column.name for column in columns if column.physical_type == "INT96" and column.path == column.name
    ]
    if not names:
        yield from repeat({})
    for batch in pq.ParquetFile(local, memory_map=False).iter_batches(batch_size=rows, columns=names):
        for values in zip(*(batch[name].cast(pa.int64()).to_pylist() for name in names), strict=True):
            yield dict(zip(names, values, strict=True))


def with_digits(value: datetime | None, nanoseconds: int | None) -> str | None:
    """A timestamp without a zone as ISO 8601, with all of its digits and no zeros at their end."""
    if value is None or nanoseconds is None:
        return None
    since = value - datetime(1970, 1, 1)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    rest = (nanoseconds - 1_000 * microseconds) % 2**64
    text = f"{value.isoformat(timespec='microseconds')}{rest:03}"
    return text.rstrip("0").removesuffix(".")
