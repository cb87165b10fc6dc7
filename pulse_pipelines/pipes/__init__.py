"""Pipes: replication of tables of other Postgres databases into datasets of entities, as syncs.

A pipe is defined in `registry`, launched by a sensor, and executed by `run`, which imports Spark: code that
only defines pipes does not need it.
"""

from pulse_pipelines.pipes.registry import (
    Pipe,
    ask,
    create,
    delete,
    due,
    failed,
    find,
    fingerprint,
    list_pipes,
    names,
    pause,
    reset,
)

__all__ = [
    "Pipe",
    "ask",
    "create",
    "delete",
    "due",
    "failed",
    "find",
    "fingerprint",
    "list_pipes",
    "names",
    "pause",
    "reset",
]
