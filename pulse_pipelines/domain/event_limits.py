"""Event limits: size, depth, the accepted range of timestamps, and CPU time and memory of validation."""

import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pulse_pipelines.domain.event import EARLIEST, Rejected
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.reasons import Reason

MICROSECOND = timedelta(microseconds=1)

FAIR_NS = 100.0
"""CPU time per byte of validation that is not charged to the budget: all other processing of an event takes
about as long, and the validator less than a tenth for a schema without expensive keywords."""

_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class EventLimits:
    """Limits of an event: size, depth, timestamp range, and resources of validation.

    The range of timestamps ends `ahead` after the event was received: after its append by the broker's clock,
    or, in the HTTP API, where it has not been appended yet, by the API's own clock.
    """

    max_bytes: int
    """Larger payloads are refused."""
    max_depth: int
    """More deeply nested payloads are refused."""
    earliest: datetime
    ahead: timedelta
    validation_seconds: float
    """CPU time limit of validating one event; events that may take long are validated in a worker process."""
    validation_memory_bytes: int
    """Memory limit of that process."""
    batch_validation_seconds: float
    """CPU time for validating one tenant's events in a task of a batch, beyond `FAIR_NS` per byte."""

    def untimely(self, moment: datetime, received: datetime) -> Rejected | None:
        """The rejection of an event with this timestamp, received at that time; None if it is accepted."""
        latest = received + self.ahead if self.ahead < _LATEST - received else _LATEST
        if self.earliest <= moment <= latest:
            return None
        return Rejected(
            Reason.TIMESTAMP_OUT_OF_RANGE,
            f"{utc_text(moment)} is outside the accepted range from {utc_text(self.earliest)} to "
            f"{utc_text(latest)}, which is {self.ahead.total_seconds():g} s after the event was received: "
            "correct the sender's clock, or widen ingest.earliest_timestamp "
            "or ingest.timestamp_ahead_seconds and replay it",
            "/timestamp",
        )


@dataclass
class Budget:
    """CPU time for validating the events of one tenant together, beyond `FAIR_NS` per byte."""

    seconds: float = math.inf
    spent: float = 0.0

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.seconds

    def charge(self, seconds: float, size: int) -> None:
        """Add the seconds of validating an event of `size` bytes."""
        self.spent += max(0.0, seconds - FAIR_NS * size / 1e9)


UNLIMITED = EventLimits(2**63, 200, EARLIEST, timedelta.max, math.inf, sys.maxsize, math.inf)
"""Limits for events that have landed before, which were within the limits of their time."""
