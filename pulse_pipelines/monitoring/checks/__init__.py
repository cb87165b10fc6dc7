"""Logic of the asset checks, without Dagster.

`Inspection` runs all checks on all tenants' datasets of a slug; `run` runs one check on one dataset.
"""

from pulse_pipelines.monitoring.checks.inspection import CHECKS, TABLE_CHECKS, CheckSummary, Inspection, run
from pulse_pipelines.monitoring.checks.isolation import RLS_TABLES
from pulse_pipelines.monitoring.checks.latest_results import MEANINGS, LatestResult, latest_results
from pulse_pipelines.monitoring.checks.subject import CheckResult, Scope

__all__ = [
    "CHECKS",
    "MEANINGS",
    "RLS_TABLES",
    "TABLE_CHECKS",
    "CheckResult",
    "CheckSummary",
    "Inspection",
    "LatestResult",
    "Scope",
    "latest_results",
    "run",
]
