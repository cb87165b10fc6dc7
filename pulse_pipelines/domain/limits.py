"""Event limits: size, depth, the accepted range of timestamps, and what validating an event may cost."""

import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pulse_pipelines.domain.event import EARLIEST, Rejected
from pulse_pipelines.domain.reasons import Reason

MICROSECOND = timedelta(microseconds=1)

FAIR_NS = 100.0
"""CPU time per byte that judging an event may take on nobody's account: all else that is done with it takes
about as long, and the validator less than a tenth where a schema asks for nothing dear."""

_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class EventLimits:
    """Size, depth, and the range of timestamps that is accepted.

    The range ends `ahead` after the event was received: after its append by the broker's clock, or, at the
    front door, where it has not been appended yet, by the API's own.
    """

    max_bytes: int
    """Larger payloads are refused ..."""
    max_depth: int
    """... and so are more deeply nested ones."""
    earliest: datetime
    ahead: timedelta
    judge_seconds: float
    """CPU time that judging may take; what could take long is judged where it can be ended ..."""
    judge_memory_bytes: int
    """... as it is when that process takes more memory than this."""
    judge_batch_seconds: float
    """What judging the events of one tenant may take beyond their fair share, in a task of a batch."""

    def untimely(self, moment: datetime, received: datetime) -> Rejected | None:
        """Why an event with this timestamp that was received then is refused, if so."""
        latest = received + self.ahead if self.ahead < _LATEST - received else _LATEST
        if self.earliest <= moment <= latest:
            return None
        return Rejected(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"{_text(moment)} is outside the accepted range from {_text(self.earliest)} to {_text(latest)}, "
            f"which is {self.ahead.total_seconds():g} s after the event was received: correct the sender's "
            "clock, or widen ingest.earliest_timestamp or ingest.timestamp_ahead_seconds and replay it",
            "/timestamp",
        )


@dataclass
class Budget:
    """CPU time that judging the events of one tenant may take together, beyond their fair share."""

    seconds: float = math.inf
    spent: float = 0.0

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.seconds

    def charge(self, seconds: float, size: int) -> None:
        """Add what judging an event of so many bytes took."""
        self.spent += max(0.0, seconds - FAIR_NS * size / 1e9)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


UNLIMITED = EventLimits(2**63, 200, EARLIEST, timedelta.max, math.inf, sys.maxsize, math.inf)
"""Of what landed before: it was within the limits of its time."""
