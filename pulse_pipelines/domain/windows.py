"""Windows of a state: counts and sums of the last minutes and hours per key, and sessions.

They are stored as buckets: for a key and a minute of event time, the number of events, the first and the last
of them, and sums. Buckets of the last `RETENTION_MINUTES` minutes, back from the dataset's newest event, are
kept: any window of a day before now needs no more. Events that claim to be more than `AHEAD_S` later than
their receipt are in no window, so this is always enough.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

from pulse_pipelines.domain.moments import EPOCH, EPOCH_DAY
from pulse_pipelines.domain.quota import STATE_BUCKETS

MINUTE_US = 60_000_000
LENGTHS = {"5m": 5, "1h": 60, "24h": 1_440}
"""Minutes of each window."""
AHEAD_S = 3_600
"""Seconds by which an event's timestamp may be after its receipt; one beyond them is in no window."""
RETENTION_MINUTES = max(LENGTHS.values()) + AHEAD_S // 60
"""Minutes of buckets that are kept, the newest one included."""
MAX_SUMS = 8
MIN_GAP_S, MAX_GAP_S = 60, 86_400
"""Gaps between sessions. Events of one minute are always of one session: buckets tell sessions exactly."""


@dataclass(frozen=True)
class Windows:
    """The windows that a state declares."""

    sums: tuple[str, ...] = ()
    """Columns that are summed."""
    session_gap_s: int | None = None
    """A session ends where no event follows for longer than this; None: sessions are not kept."""
    max_buckets: int = STATE_BUCKETS


def minute(at: datetime) -> int:
    """The minute of a moment, since 1970."""
    return (at - EPOCH) // timedelta(minutes=1)


def end_of(day: date) -> int:
    """The last minute of a day."""
    return (day - EPOCH_DAY).days * 1_440 + 1_439


def plain(total: Decimal) -> str:
    """A sum as a number of JSON, without trailing zeros."""
    text = format(total, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
