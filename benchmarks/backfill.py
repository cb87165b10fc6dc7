"""A backfill of one large day, against nothing but itself: rows per second, all of it in one commit."""

import time
from datetime import date

from benchmarks import load
from pulse_pipelines.backfill import Backfilled, backfill
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import spark
from pulse_resources.settings import load_settings

WARM_UP_DAY = date(2026, 1, 1)
"""A day without events: a rebuild of it opens the connections."""


def measure(tenant: Tenant, day: date, times: int) -> list[tuple[Backfilled, float]]:
    """Rebuild the day again and again; each with the rows per second that it made."""
    done = []
    with spark.session() as session:
        parallelism = load_settings().spark.parallelism
        backfill(session, tenant, load.DATASET, WARM_UP_DAY, parallelism=parallelism)
        for _ in range(times):
            began = time.perf_counter()
            found = backfill(session, tenant, load.DATASET, day, parallelism=parallelism)
            done.append((found, found.rows / (time.perf_counter() - began)))
    return done
