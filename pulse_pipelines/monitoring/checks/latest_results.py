"""The latest result of each check of a dataset, recorded for its tenant: whether it passed, and when.

What a problem says is for operators: it names files and offsets. Its tenant learns how many there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.checks.subject import CheckResult, Scope
from pulse_resources import postgres

SAVE = """
INSERT INTO check_results (tenant_id, dataset_id, name, scope, problems)
SELECT tenant_id, dataset_id, r.name, %s, r.problems
FROM pdm_datasets CROSS JOIN unnest(%s::text[], %s::integer[]) AS r (name, problems)
WHERE (tenant_id, slug) = (%s, %s)
ON CONFLICT (dataset_id, name) DO UPDATE
SET scope = excluded.scope, problems = excluded.problems, checked_at = excluded.checked_at
"""
LIST = """
SELECT c.name, problems, scope, checked_at FROM check_results c JOIN pdm_datasets USING (dataset_id)
WHERE slug = %s ORDER BY c.name
"""
MEANINGS = {
    "tenant_isolation": "every file and row of the table is this tenant's",
    "schema_conformance": "the table has the columns of its schema, and its rows are valid by it",
    "reconciled": "the table has as many rows as its ledger says",
    "file_health": "files, snapshots and manifests are few enough to be read fast",
    "latest_equals_log": "the newest version of each entity is the one that the next is compared with",
    "index_equals_log": "the indexes of entities lead to the versions that the log has, and to no others",
    "state_equals_table": "the newest event of each key is the one that the state has",
    "freshness": "events do not wait longer than they should before they land",
}
"""What is true when a check passes."""


@dataclass(frozen=True)
class LatestResult:
    """The latest result of a check of one dataset."""

    name: str
    meaning: str
    passed: bool
    problems: int
    """Number of problems; operators see what they are."""
    scope: str
    """table, or batch: what the latest batch had added."""
    checked_at: datetime


def save(tenant: Tenant, slug: str, scope: Scope, results: Mapping[str, CheckResult]) -> None:
    """Record the results of one dataset's checks, by check; a dataset that is gone has none."""
    extent = "table" if scope.batch_id is None else "batch"
    counts = [len(result.problems) for result in results.values()]
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(SAVE, [extent, list(results), counts, tenant.tenant_id, slug])


def latest_results(tenant: Tenant, slug: str) -> list[LatestResult]:
    """The latest results of a dataset's checks, by name; a new dataset has none yet."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return [
            LatestResult(name, MEANINGS.get(name, ""), not problems, problems, scope, at)
            for name, problems, scope, at in connection.execute(LIST, [slug])
        ]
