"""Settings by which every timestamp is accepted that a table can hold, and the days at its ends."""

from datetime import date

FIRST, LAST = date(1, 1, 1), date(9999, 12, 31)
ANY_TIME = {"INGEST__EARLIEST_TIMESTAMP": "0001-01-01T00:00:00Z", "INGEST__TIMESTAMP_AHEAD_SECONDS": 4e11}
