"""Moments: Unix time's first one, and their text."""

from datetime import UTC, datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = EPOCH.date()


def utc_text(moment: datetime, *, sep: str = "T", timespec: str = "auto") -> str:
    """The ISO 8601 text of a moment in UTC, with `Z`. For `sep` and `timespec` see `datetime.isoformat`."""
    return moment.astimezone(UTC).isoformat(sep, timespec).replace("+00:00", "Z")
