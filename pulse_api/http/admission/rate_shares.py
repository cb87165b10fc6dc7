"""Rate shares: this process's shares of the tenants' rates, by recent demand here and in other processes.

While a tenant's demand here is below a hundredth of its rate, each process has an equal share, at no cost.
For other tenants each process publishes its demand at every update, reads that of the others, and all compute
shares that add up to the rate (`domain.quota.part`). While senders move from one process to another, shares
of two updates overlap: for that time up to about twice the rate may get through.

Demand is the maximum of the last three updates, because a refused client pauses before it retries. A process
that is silent for three updates loses its share. A process that cannot reach Postgres keeps its shares.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from uuid import UUID, uuid4

import psycopg

from pulse_api.http.admission.rates import BucketKey, Rates
from pulse_pipelines.domain.quota import part
from pulse_pipelines.registry import rate_shares
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings

UPDATES = 3
"""Updates whose demand counts in this process, and after which a silent process loses its share."""
NOTABLE = 0.01
"""Fraction of a rate: demand below it is not published."""
DemandByBucket = dict[BucketKey, tuple[float, float]]
"""Demand and the whole rate, both per second."""
_log = logging.getLogger("pulse.api")


class RateShares:
    """Exchanges demand with the other processes and sets shares; one instance per process."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._process = uuid4()
        self._published_at = time.monotonic()
        self._recent: deque[DemandByBucket] = deque(maxlen=UPDATES)
        self._every = load_settings().api.rate_look_seconds
        self._answers = True

    async def keep(self) -> None:
        """Run `update_shares` periodically."""
        while True:
            await asyncio.to_thread(self.update_shares)
            await asyncio.sleep(self._every)

    def update_shares(self) -> None:
        """Publish demand since the last call, and set the shares that follow from all processes' demand."""
        now = time.monotonic()
        seconds, self._published_at = max(now - self._published_at, 0.001), now
        demands = self._rates.take_demands().items()
        self._recent.append(
            {bucket_key: (demand.count / seconds, demand.rate) for bucket_key, demand in demands}
        )
        demand: DemandByBucket = {}
        for demands_then in self._recent:  # later demands overwrite the rate: the latest holds
            for bucket_key, (per_second, rate) in demands_then.items():
                demand[bucket_key] = max(per_second, demand.get(bucket_key, (0.0, 0.0))[0]), rate
        try:
            self._share({bucket_key: of for bucket_key, of in demand.items() if of[0] >= NOTABLE * of[1]})
            self._answers = True
        except (psycopg.Error, PulseError) as error:
            if self._answers:
                _log.warning("rates are shared out as they were until Postgres answers: %s", error)
            self._answers = False

    def leave(self) -> None:
        """Release this process's shares to the others."""
        try:
            if self._answers:
                rate_shares.leave(self._process)
        except (psycopg.Error, PulseError) as error:
            _log.warning("the others have this process's parts of the rates in a moment: %s", error)

    def _share(self, demand: DemandByBucket) -> None:
        lifetime = UPDATES * self._every
        processes = rate_shares.beat(self._process, lifetime)
        by_tenant: dict[UUID, dict[str, float]] = defaultdict(dict)
        if processes > 1:
            for (tenant_id, kind), (per_second, _) in demand.items():
                by_tenant[tenant_id][kind] = per_second
        shares: dict[BucketKey, float] = {}
        for tenant_id, demand_of_tenant in by_tenant.items():
            demand_elsewhere = rate_shares.exchange(self._process, tenant_id, demand_of_tenant, lifetime)
            for kind, per_second in demand_of_tenant.items():
                rate = demand[tenant_id, kind][1]
                shares[tenant_id, kind] = part(rate, per_second, demand_elsewhere[kind]) / rate
        self._rates.share(shares, 1 / processes)
