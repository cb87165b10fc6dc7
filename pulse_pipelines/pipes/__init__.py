"""Pipes: copy tables, files, feeds and queries into datasets, and datasets of entities to sinks.

A pipe is defined in `registry`, launched by a sensor, watched between runs by `watch`, and executed by `run`,
which imports Spark: code that only defines pipes does not need it.
"""

from pulse_pipelines.pipes import addresses, connections
from pulse_pipelines.pipes.outcomes import LastDay, delivered, ended, last_day, last_delivery, last_sync
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
    owners,
    pause,
    reset,
)
from pulse_pipelines.pipes.sinks.deliveries import Delivery, of_pipe as deliveries

__all__ = [
    "Delivery",
    "LastDay",
    "Pipe",
    "addresses",
    "ask",
    "connections",
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
    "owners",
    "pause",
    "reset",
]
