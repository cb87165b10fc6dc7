"""When events landed last is one look into an index, however many landings a dataset has."""

from typing import Any

from support.ingest import Owner

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.ask import record
from pulse_resources import postgres

LANDINGS = 2_000
# Ten that landed no events, and those of nine datasets that other tenants have, follow.
INSERT = """
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files, snapshot_id,
    metadata_location, landed_at)
SELECT 'of-freshness-' || n, coalesce(o.id, %(tenant)s), coalesce(o.id, %(dataset)s), 'orders',
    date '2026-01-01' + n %% 100, (n NOT BETWEEN %(landings)s + 1 AND %(landings)s + 10)::int, 0, 1, 1, n,
    'nowhere', timestamptz '2026-05-01' + n * interval '1 minute'
FROM generate_series(1, 10 * %(landings)s) n CROSS JOIN LATERAL (
    SELECT CASE WHEN n > %(landings)s + 10 THEN md5((n %% 9)::text)::uuid END AS id) o
"""


def rows_read(plan: dict[str, Any]) -> float:
    """Rows of `landings` that a plan reads."""
    read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    own = read * plan["Actual Loops"] if plan.get("Relation Name") == "landings" else 0
    return own + sum(rows_read(part) for part in plan.get("Plans", ()))


def test_freshness_of_a_dataset_with_many_landings_reads_one(owner: Owner) -> None:
    tenant, dataset = owner.tenant, registry.find_dataset(owner.tenant, "orders")
    values = {"tenant": tenant.tenant_id, "dataset": dataset.dataset_id, "landings": LANDINGS}
    with superuser() as connection:
        connection.execute(INSERT, values)
        connection.execute("ANALYZE landings")
    try:
        (landed,) = record.freshness(tenant, ["orders"]).values()
        assert landed
        assert landed.isoformat() == "2026-05-02T09:20:00+00:00"
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            query = f"EXPLAIN (ANALYZE, FORMAT JSON) {record.LANDED}"
            explained = connection.execute(query, [tenant.tenant_id, ["orders"]]).fetchone()
        assert explained
        assert rows_read(explained[0][0]["Plan"]) == 1
    finally:
        with superuser() as connection:
            connection.execute("DELETE FROM landings WHERE batch_id LIKE 'of-freshness-%'")
