"""Noisy neighbours: a tenant that floods, one with only invalid events, one whose table is gone."""

import time
from contextlib import ExitStack

from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.stack import Stack
from chaos.surroundings import superuser
from chaos.traffic import Traffic, settled_until
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

PHASE_S = 150.0
LIMIT = 1.5
"""Maximum ratio of the other tenants' p95 wait beside noisy neighbours."""
RATE, FLOOD = 40, 4_000
"""Events per second of a quiet tenant and of the flooding one."""
WARM_UP_S = 100.0
"""Until rollups are computed too, which starts a minute after the first events."""
FRESHNESS = """
SELECT percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY seconds) FROM (
    SELECT extract(epoch FROM settled_at - oldest_received)::float8 AS seconds FROM ingest_ranges
    WHERE tenant_id = ANY(%s) AND settled_at BETWEEN %s AND %s AND oldest_received IS NOT NULL) found
"""
DROP = "DELETE FROM iceberg_catalog.iceberg_tables WHERE table_namespace = %s AND table_name = 'orders'"


def run(stack: Stack, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Measure the age of the oldest event at settlement, for quiet tenants, without and with noise."""
    quiet = Traffic.of_new_tenants(seed, tenants=4, rate=RATE)
    noisy = [
        Traffic.of_new_tenants(seed + 10, tenants=1, rate=FLOOD),
        Traffic.of_new_tenants(seed + 20, tenants=1, rate=RATE, bad=1.0),
        Traffic.of_new_tenants(seed + 30, tenants=1, rate=RATE),
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
    with_tables = [*quiet.sent, *noisy[0].sent, *noisy[1].sent]
    settled_until(with_tables)
    settled_until(noisy[2].sent)
    tenants = [sent.tenant for sent in quiet.sent]
    calm, loud = _freshness(tenants, began, between), _freshness(tenants, between, ended)
    ratio = loud[1] / calm[1]
    findings = []
    if ratio > LIMIT:
        findings.append(Finding("the others waited longer", "all", f"p95 {ratio:.2f} times as long"))
    before, meanwhile = (f"p50 {quantiles[0]:.1f} s, p95 {quantiles[1]:.1f} s" for quantiles in (calm, loud))
    harm = f"freshness of the others: {before} before; {meanwhile} meanwhile"
    return Outcome(with_tables, harm, findings)


def _drop_table(tenant: Tenant) -> None:
    with superuser() as connection:
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
