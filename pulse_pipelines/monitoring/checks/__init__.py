"""The facts behind the asset checks. No Dagster in here.

`Inspection` looks at all tenants' datasets of a slug; `run` is one check of one dataset.
"""

from pulse_pipelines.monitoring.checks.inspection import CHECKS, TABLE_CHECKS, Inspection, Outcome, run
from pulse_pipelines.monitoring.checks.isolation import RLS_TABLES
from pulse_pipelines.monitoring.checks.subject import Finding, Scope

__all__ = ["CHECKS", "RLS_TABLES", "TABLE_CHECKS", "Finding", "Inspection", "Outcome", "Scope", "run"]
