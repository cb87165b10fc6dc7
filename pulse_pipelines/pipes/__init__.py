"""Pipes: replication of tables of other Postgres databases into datasets of entities, as syncs; and the other
way round: of datasets of entities to sinks.

A pipe is defined in `registry`, launched by a sensor, watched between runs by `watch`, and executed by `run`,
which imports Spark: code that only defines pipes does not need it.
"""

from pulse_pipelines.pipes.last_day import LastDay, last_day
from pulse_pipelines.pipes.registry import (
    Pipe,
    ask,
    create,
    delete,
    due,
    everyones,
    find,
    list_pipes,
    made,
    names,
    pause,
    reset,
)
from pulse_pipelines.pipes.requested import delivered, ended, last_delivery, last_sync
from pulse_pipelines.pipes.sinks.deliveries import Delivery, of_pipe as deliveries

__all__ = [
    "Delivery",
    "LastDay",
    "Pipe",
    "ask",
    "create",
    "delete",
    "delivered",
    "deliveries",
    "due",
    "ended",
    "everyones",
    "find",
    "last_day",
    "last_delivery",
    "last_sync",
    "list_pipes",
    "made",
    "names",
    "pause",
    "reset",
]
