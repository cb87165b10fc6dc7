"""Check `tenant_isolation`: a table lies under its tenant's prefix and holds only its tenant's rows."""

import uuid

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.query import duckdb_pool
from pulse_resources import postgres
from pulse_resources.settings import load_settings

OWNERS = """
SELECT count(*), count(*) FILTER (tenant_id IS DISTINCT FROM ? OR dataset_id IS DISTINCT FROM ?)
FROM read_parquet(?)
"""
UNFORCED = """
SELECT relname FROM pg_class
WHERE relname = ANY(%s) AND relkind = 'r' AND NOT (relrowsecurity AND relforcerowsecurity)
"""
RLS_TABLES = (
    "pdm_tenants",
    "pdm_schemas",
    "pdm_datasets",
    "entity_logs",
    "entity_heads",
    "entity_indexes",
    "entity_index_runs",
    "entity_index_readers",
    "event_states",
    "event_state_keys",
    "event_windows",
    "event_window_buckets",
    "entity_syncs",
    "entity_sync_ids",
    "pipes",
    "pipe_deliveries",
    "processed_event_ids",
    "ingest_ranges",
    "ingest_positions",
    "landings",
    "raw_objects",
    "dead_letters",
    "dead_letter_outbox",
    "usage",
    "intake_holds",
    "rate_shares",
    "api_keys",
    "quotas",
    "rates",
    "intake",
    "intake_doubts",
    "dataset_versions",
    "dataset_moves",
    "sql_queries",
    "lake_requests",
    "lake_purges",
    "questions",
    "deleted_datasets",
    "backfills",
    "upkeep_log",
    "upkeep_tables",
    "upkeep_days",
    "upkeep_tenants",
    "erasures",
    "erased_offsets",
    "accepted_losses",
    "summaries",
    "check_results",
    "failures",
    "iceberg_tables",
    "iceberg_namespace_properties",
)


def tenant_isolation(subject: Subject) -> CheckResult:
    """Check the namespace, the prefix of every file, the owner of every row, and row-level security."""
    tenant, dataset, result = subject.tenant, subject.dataset, CheckResult()
    bucket = load_settings().object_store.bucket
    location = tenant.table_location(bucket, dataset.slug, dataset.dataset_id)
    if subject.table.location() != location:
        result.problems.append(f"the table is at {subject.table.location()}, not at {location}")
    paths = [file.file_path for file in subject.files]
    strays = [path for path in paths if not path.startswith(f"{location}/")]
    result.problems.extend(f"a data file is outside the tenant's prefix: {p}" for p in strays[:5])
    read = [file.file_path for file in subject.scope.sample(subject.files)]
    if read:
        with duckdb_pool.connect() as connection:
            rows, foreign = connection.execute(
                OWNERS, [str(tenant.tenant_id), str(dataset.dataset_id), read]
            ).fetchone() or (0, 0)
        result.numbers |= {"rows": rows, "foreign_rows": foreign}
        if foreign:
            result.problems.append(f"{foreign} rows belong to another tenant or dataset")
    result.numbers |= {"files": len(paths), "files_read": len(read), "stray_files": len(strays)}
    result.problems.extend(_rls_problems(tenant, dataset))
    return result


def _rls_problems(tenant: Tenant, dataset: Dataset) -> list[str]:
    with postgres.tenant_transaction("pulse_api", uuid.uuid4()) as stranger:
        unforced = [row[0] for row in stranger.execute(UNFORCED, [list(RLS_TABLES)])]
        leaks = stranger.execute(
            "SELECT count(*) FROM pdm_datasets WHERE dataset_id = %s", [dataset.dataset_id]
        ).fetchone()
        catalog = stranger.execute(
            "SELECT count(*) FROM iceberg_catalog.iceberg_tables WHERE starts_with(table_namespace, %s)",
            [tenant.namespace],
        ).fetchone()
    problems = [f"row-level security is not forced on {name}" for name in unforced]
    if leaks != (0,) or catalog != (0,):
        problems.append("another tenant's session sees this dataset")
    return problems
