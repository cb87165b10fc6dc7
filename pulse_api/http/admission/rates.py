"""Rates per tenant, as token buckets that hold some seconds' worth of tokens.

The kinds in `SHARED` hold over all API processes together: each process has a share of the rate, which
`RateShares` sets every second, so no request waits for coordination.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from pulse_pipelines.domain.quota import SLOWEST, limited

MAX_BUCKETS = 20_000
SHARED = frozenset({"requests", "events"})
"""Kinds that are a tenant's own limits; the other kinds protect one process."""

BucketKey = tuple[UUID, str]
"""Tenant and kind of rate."""


@dataclass
class _Bucket:
    tokens: float
    filled_at: float
    per_second: float


@dataclass
class Demand:
    """Demand on a shared rate since the last update of the shares."""

    count: float = 0.0
    rate: float = 0.0
    """The whole rate over all processes, per second."""


class Rates:
    """Token buckets by tenant and kind. Use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[BucketKey, _Bucket] = {}
        self._demands: defaultdict[BucketKey, Demand] = defaultdict(Demand)
        self._shares: Mapping[BucketKey, float] = {}
        self._equal = 1.0

    def take(self, tenant_id: UUID, kind: str, count: int, per_second: float, seconds: float = 1.0) -> float:
        """Take `count` tokens; 0.0 if they were available, else the seconds until they will be.

        A request larger than the bucket passes when the bucket is full, and leaves it in debt. A rate below
        `SLOWEST`, as could be set once, counts as that: a process's part of the smallest number would be 0.

        Args:
            seconds: the bucket's capacity, in seconds of the rate.
        """
        if not limited(per_second):
            return 0.0
        per_second = max(per_second, SLOWEST)
        key = tenant_id, kind
        with self._lock:
            if kind in SHARED:
                demand = self._demands[key]
                demand.count += count
                demand.rate = per_second
                per_second *= self._shares.get(key, self._equal)
            return self._take(key, count, per_second, max(1.0, per_second * seconds))

    def wait_s(self, tenant_id: UUID, kind: str) -> float:
        """Seconds until a token of a tenant's own process-wide rate is available; nothing is taken."""
        with self._lock:
            bucket = self._buckets.get((tenant_id, kind))
            if bucket is None:
                return 0.0
            return max(0.0, (1 - _tokens(bucket, time.monotonic())) / bucket.per_second)

    def take_demands(self) -> dict[BucketKey, Demand]:
        """Demand since the previous call; a debt counts as demand until it is paid."""
        with self._lock:
            demands, self._demands = self._demands, defaultdict(Demand)
            for key, share in self._shares.items():
                if (bucket := self._buckets.get(key)) and (debt := -_tokens(bucket, time.monotonic())) > 0:
                    demands[key].count += debt
                    demands[key].rate = demands[key].rate or bucket.per_second / share
            return demands

    def share(self, shares: Mapping[BucketKey, float], equal: float) -> None:
        """Set this process's shares of rates, as fractions, and the equal share of all other rates."""
        with self._lock:
            self._shares, self._equal = shares, equal

    def _take(self, key: BucketKey, count: int, per_second: float, capacity: float) -> float:
        now = time.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.pop(next(iter(self._buckets)))
            bucket = self._buckets[key] = _Bucket(capacity, now, per_second)
        bucket.per_second = per_second
        bucket.tokens = min(capacity, _tokens(bucket, now))
        bucket.filled_at = now
        needed = min(float(count), capacity)
        if bucket.tokens >= needed:
            bucket.tokens -= count
            return 0.0
        return (needed - bucket.tokens) / per_second


def _tokens(bucket: _Bucket, now: float) -> float:
    return bucket.tokens + (now - bucket.filled_at) * bucket.per_second
