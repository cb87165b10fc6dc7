"""Noisy neighbours: a tenant that floods, one whose every event is bad, one whose table is gone."""

import time
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from chaos.sent import Sent
from chaos.traffic import Traffic, settled_until
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.settings import load_settings

PHASE_S = 60.0
RATE, FLOOD = 40, 4_000
"""Events per second, of a quiet tenant and of the one that floods."""
WARM_UP_S = 20.0
FRESHNESS = """
SELECT percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY seconds) FROM (
    SELECT extract(epoch FROM settled_at - oldest_received)::float8 AS seconds FROM ingest_ranges
    WHERE tenant_id = ANY(%s) AND settled_at BETWEEN %s AND %s AND oldest_received IS NOT NULL) found
"""
DROP = "DELETE FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s AND table_name = 'orders'"


@dataclass(frozen=True)
class Noise:
    sent: list[Sent]
    """By all but the tenant without a table."""
    calm_s: tuple[float, float]
    """Freshness of the quiet tenants without neighbours, p50 and p95: the age of a range's oldest event."""
    noisy_s: tuple[float, float]


def run(seed: int) -> Noise:
    """Freshness of quiet tenants without noise, and with it."""
    quiet = Traffic(seed, tenants=4, rate=RATE)
    noisy = [
        Traffic(seed + 10, tenants=1, rate=FLOOD),
        Traffic(seed + 20, tenants=1, rate=RATE, bad=1.0),
        Traffic(seed + 30, tenants=1, rate=RATE),
    ]
    _drop_table(noisy[2].sent[0].tenant)
    with quiet.flowing():
        time.sleep(WARM_UP_S)
        began = _now()
        time.sleep(PHASE_S)
        between = _now()
        with ExitStack() as all_of_them:
            for traffic in noisy:
                all_of_them.enter_context(traffic.flowing())
            time.sleep(PHASE_S)
            ended = _now()
    settled_until([sent for traffic in (quiet, *noisy) for sent in traffic.sent])
    tenants = [sent.tenant for sent in quiet.sent]
    return Noise(
        [*quiet.sent, *noisy[0].sent, *noisy[1].sent],
        _freshness(tenants, began, between),
        _freshness(tenants, between, ended),
    )


def _drop_table(tenant: Tenant) -> None:
    settings = load_settings().postgres
    with psycopg.connect(settings.superuser_url(settings.database), autocommit=True) as connection:
        assert connection.execute(DROP, [tenant.namespace]).rowcount == 1


def _now() -> object:
    with postgres.transaction("pulse_pipeline") as connection:
        return (connection.execute("SELECT now()").fetchone() or (None,))[0]


def _freshness(tenants: list[Tenant], since: object, until: object) -> tuple[float, float]:
    with postgres.transaction("pulse_pipeline") as connection:
        row = connection.execute(FRESHNESS, [[t.tenant_id for t in tenants], since, until]).fetchone()
    assert row, "an aggregate has a row"
    assert row[0], "nothing was settled in this time"
    median, high = row[0]
    return median, high
