"""Pipes: copy tables, files, feeds and queries into datasets, and datasets of entities to sinks.

A pipe is defined in `registry`, launched by a sensor, watched between runs by `watch`, and executed by `run`,
which imports Spark: code that only defines pipes does not need it.
"""

from pulse_pipelines.pipes import addresses as addresses, connections as connections
from pulse_pipelines.pipes.creation import create as create
from pulse_pipelines.pipes.outcomes import (
    LastDay as LastDay,
    delivered as delivered,
    ended as ended,
    last_day as last_day,
    last_delivery as last_delivery,
    last_sync as last_sync,
)
from pulse_pipelines.pipes.registry import (
    Pipe as Pipe,
    ask as ask,
    creation_times as creation_times,
    delete as delete,
    due as due,
    find as find,
    list_all_pipes as list_all_pipes,
    list_pipes as list_pipes,
    owners as owners,
    pause as pause,
    reset as reset,
)
from pulse_pipelines.pipes.sinks.deliveries import Delivery as Delivery, list_deliveries as list_deliveries
