"""Pipes: replication of tables of other Postgres databases into datasets of entities, as syncs.

A pipe is defined in `registry`, launched by a sensor, watched between runs by `watch`, and executed by `run`,
which imports Spark: code that only defines pipes does not need it.
"""

from pulse_pipelines.pipes.registry import (
    LastDay,
    Pipe,
    ask,
    create,
    delete,
    due,
    everyones,
    find,
    fingerprint,
    last_day,
    list_pipes,
    names,
    pause,
    reset,
)
from pulse_pipelines.pipes.requested import ended, last_sync

__all__ = [
    "LastDay",
    "Pipe",
    "ask",
    "create",
    "delete",
    "due",
    "ended",
    "everyones",
    "find",
    "fingerprint",
    "last_day",
    "last_sync",
    "list_pipes",
    "names",
    "pause",
    "reset",
]
