"""Dates and timestamps of older writers of Parquet: INT96, and the calendar of Spark before its version 3.

Timestamps of INT96 reach further than 64 bits of nanoseconds do. They are read twice: in microseconds, which
reach beyond the years 1 to 9999, and in nanoseconds, which are right modulo 2^64. Both together give all
digits. Within lists and structs the last three are left out.

A file with dates of the old calendar names it in its footer. Its days before 15 October 1582 are those of the
Julian calendar, and its timestamps before 1900 were moved by a zone's local mean time: as days of today's
calendar they are other days. They are refused; all later ones are as in any other file.
"""

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

INT96_UNIT = "us"
"""As `coerce_int96_timestamp_unit` has it: what `with_digits` takes."""
_VERSION, _DATES, _INT96 = (
    b"org.apache.spark.version",
    b"org.apache.spark.legacyDateTime",
    b"org.apache.spark.legacyINT96",
)
_FIRST_DAY, _FIRST_MOMENT = date(1582, 10, 15), datetime(1900, 1, 1)


def int96_digits(local: Any, file: pq.ParquetFile, rows: int) -> Iterator[Mapping[str, int | None]]:
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
    times = pq.ParquetFile(local, memory_map=False, page_checksum_verification=True)
    for batch in times.iter_batches(batch_size=rows, columns=names):
        for values in zip(*(batch[name].cast(pa.int64()).to_pylist() for name in names), strict=True):
            yield dict(zip(names, values, strict=True))


def with_digits(value: datetime | None, nanoseconds: int | None) -> str | None:
    """A timestamp without a zone as ISO 8601, with all of its digits and no zeros at their end."""
    if value is None or nanoseconds is None:
        return None
    since = value - datetime(1970, 1, 1)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    remainder = (nanoseconds - 1_000 * microseconds) % 2**64
    text = f"{value.isoformat(timespec='microseconds')}{remainder:03}"
    return text.rstrip("0").removesuffix(".")


class OldCalendar(NamedTuple):
    """Which values of a file may be of the old calendar."""

    dates: bool
    timestamps: bool

    def check(self, value: Any) -> None:
        """Raise ValueError if a value of Python, or one within it, is of the old calendar."""
        if isinstance(value, datetime):
            if self.timestamps and value.replace(tzinfo=None) < _FIRST_MOMENT:
                raise ValueError("a timestamp before 1900, which Spark has written by its old calendar")
        elif isinstance(value, date):
            if self.dates and value < _FIRST_DAY:
                raise ValueError("a date before 1582-10-15, which Spark has written by its old calendar")
        elif isinstance(value, list | tuple):
            for item in value:
                self.check(item)
        elif isinstance(value, dict):
            self.check(list(value.values()))


def calendar_of_footer(metadata: Mapping[bytes, bytes] | None) -> OldCalendar | None:
    """Whether a file may have dates or timestamps of the old calendar; None: it has none."""
    metadata = metadata or {}
    major = metadata.get(_VERSION, b"3").partition(b".")[0]
    is_old = _DATES in metadata or (major.isdigit() and int(major) < 3)
    return OldCalendar(is_old, is_old or _INT96 in metadata) if is_old or _INT96 in metadata else None
