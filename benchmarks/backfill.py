"""Backfill of one large day: rows per second, committed at once."""

import time
from datetime import date

from benchmarks import load
from pulse_pipelines.backfill import Backfilled, backfill
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import spark
from pulse_resources.settings import load_settings

WARM_UP_DAY = date(2026, 1, 1)
"""A day without events, whose rebuild opens the connections."""


def measure(tenant: Tenant, day: date, times: int) -> list[tuple[Backfilled, float]]:
    """Rebuild the day repeatedly; returns each backfill with its rows per second."""
    done = []
    with spark.session() as session:
        parallelism = load_settings().spark.parallelism
        backfill(session, tenant, load.DATASET, WARM_UP_DAY, parallelism=parallelism)
        for _ in range(times):
            began = time.perf_counter()
            result = backfill(session, tenant, load.DATASET, day, parallelism=parallelism)
            done.append((result, result.rows / (time.perf_counter() - began)))
    return done
