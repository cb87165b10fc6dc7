"""Imports of a run's process; the fork server imports this module last."""

import gc
from importlib import import_module

# Dagster imports these when a run first needs them, which took a quarter of a small batch's time.
for _name in (
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.instance.factory",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.root",
    "dagster._core.utility_ops",
    "dagster._daemon.controller",
    "dagster._grpc.server",
    "psycopg2.extras",
    "pulse_pipelines.runtime.storage",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "structlog",
    "upath.implementations.local",
):
    import_module(_name)

# Garbage collection would traverse all of it several times per run, and so copy its pages.
gc.collect()
gc.freeze()
