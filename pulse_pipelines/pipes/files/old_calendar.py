"""The old calendar: dates of Parquet files in which Spark counts the days as before its version 3.

The footer of such a file names it. Its days before 15 October 1582 are those of the Julian calendar, and its
timestamps before 1900 were moved by a zone's local mean time: who reads them as days of today's calendar has
others. They are refused, and all later ones are as in any other file.
"""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

_VERSION, _DATES, _INT96 = (
    b"org.apache.spark.version",
    b"org.apache.spark.legacyDateTime",
    b"org.apache.spark.legacyINT96",
)
_FIRST_DAY, _FIRST_MOMENT = date(1582, 10, 15), datetime(1900, 1, 1)


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


def of_footer(metadata: Mapping[bytes, bytes] | None) -> OldCalendar | None:
    """Whether a file may have dates or timestamps of the old calendar; None: it has none."""
    metadata = metadata or {}
    major = metadata.get(_VERSION, b"3").partition(b".")[0]
    is_old = _DATES in metadata or (major.isdigit() and int(major) < 3)
    return OldCalendar(is_old, is_old or _INT96 in metadata) if is_old or _INT96 in metadata else None
