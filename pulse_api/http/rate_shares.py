"""Rate shares: this process's parts of the tenants' rates, by what it and the others were asked for of late.

Of a tenant who asks for less than a hundredth of its rate here each process has an equal part: it costs
nothing. Of the others each process says every look what it was asked for, reads what the others said, and all
come to parts that make up the rate (`domain.quota.part`). While senders move from one process to another, the
parts of two looks meet: for so long about twice the rate may get through.

What counts is the most of the last three looks: who was refused rests before he asks again. A process that
says nothing for three looks has no part any more. One that cannot ask Postgres keeps the parts that it has.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from uuid import UUID, uuid4

import psycopg

from pulse_api.http.rates import Rates, Whose
from pulse_pipelines.domain.quota import part
from pulse_pipelines.registry import rate_shares
from pulse_resources.errors import PulseError
from pulse_resources.settings import load_settings

LOOKS = 3
"""That count, of this process; and after which what another one said is void."""
NOTABLE = 0.01
"""Of a rate: what is asked for less is not worth a word."""
Demand = dict[Whose, tuple[float, float]]
"""What was asked for, and the whole rate, both per second."""
_log = logging.getLogger("pulse.api")


class RateShares:
    """One per process."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._process = uuid4()
        self._looked = time.monotonic()
        self._recent: deque[Demand] = deque(maxlen=LOOKS)
        self._every = load_settings().api.rate_look_seconds
        self._answers = True

    async def keep(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(self._every)

    def look(self) -> None:
        """Say what was asked for since the last look, and take the parts that follow from what all said."""
        now = time.monotonic()
        seconds, self._looked = max(now - self._looked, 0.001), now
        found = self._rates.asked().items()
        self._recent.append({whose: (asked.count / seconds, asked.rate) for whose, asked in found})
        demand: Demand = {}
        for look in self._recent:  # the rate is that of the latest
            for whose, (per_second, rate) in look.items():
                demand[whose] = max(per_second, demand.get(whose, (0.0, 0.0))[0]), rate
        try:
            self._share({whose: of for whose, of in demand.items() if of[0] >= NOTABLE * of[1]})
            self._answers = True
        except (psycopg.Error, PulseError) as error:
            if self._answers:
                _log.warning("rates are shared out as they were until Postgres answers: %s", error)
            self._answers = False

    def leave(self) -> None:
        """Leave this process's parts to the others."""
        try:
            if self._answers:
                rate_shares.leave(self._process)
        except (psycopg.Error, PulseError) as error:
            _log.warning("the others have this process's parts of the rates in a moment: %s", error)

    def _share(self, demand: Demand) -> None:
        lifetime = LOOKS * self._every
        processes = rate_shares.beat(self._process, lifetime)
        asked: dict[UUID, dict[str, float]] = defaultdict(dict)
        if processes > 1:
            for (tenant_id, kind), (per_second, _) in demand.items():
                asked[tenant_id][kind] = per_second
        shares: dict[Whose, float] = {}
        for tenant_id, own in asked.items():
            others = rate_shares.exchange(self._process, tenant_id, own, lifetime)
            for kind, per_second in own.items():
                rate = demand[tenant_id, kind][1]
                shares[tenant_id, kind] = part(rate, per_second, others[kind]) / rate
        self._rates.share(shares, 1 / processes)
