"""Rates per tenant, as token buckets that hold some seconds' worth."""

import threading
import time
from dataclasses import dataclass
from uuid import UUID

from pulse_pipelines.domain.quota import limited

MAX_BUCKETS = 20_000


@dataclass
class _Bucket:
    tokens: float
    filled_at: float


class Rates:
    """Use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[UUID, str], _Bucket] = {}

    def take(self, tenant_id: UUID, kind: str, count: int, per_second: float, seconds: float = 1.0) -> float:
        """Take `count` tokens; 0.0 when they were there, else the seconds after which they will be.

        A request larger than the bucket passes when the bucket is full, and leaves a debt behind.

        Args:
            seconds: whose worth the bucket holds.
        """
        if not limited(per_second):
            return 0.0
        with self._lock:
            return self._take((tenant_id, kind), count, per_second, max(1.0, per_second * seconds))

    def _take(self, whose: tuple[UUID, str], count: int, per_second: float, capacity: float) -> float:
        now = time.monotonic()
        bucket = self._buckets.get(whose)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.pop(next(iter(self._buckets)))
            bucket = self._buckets[whose] = _Bucket(capacity, now)
        bucket.tokens = min(capacity, bucket.tokens + (now - bucket.filled_at) * per_second)
        bucket.filled_at = now
        needed = min(float(count), capacity)
        if bucket.tokens >= needed:
            bucket.tokens -= count
            return 0.0
        return (needed - bucket.tokens) / per_second
