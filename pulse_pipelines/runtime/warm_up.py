"""Warm-up: runs Spark's first job before the first batch, which would otherwise wait for it.

The first job loads the server's classes, opens the session that all runs share and starts Spark's Python
daemon. That takes some seconds, in which ten thousand events could land.
"""

import logging
import socket

from pulse_pipelines.ingest.probe import Conforms, Probe, probe_task
from pulse_pipelines.validation.limits import event_limits
from pulse_resources.settings import load_settings
from pulse_resources.spark import CONNECT_S, run_tasks, shared

_log = logging.getLogger("pulse.warm_up")


def warm_up() -> int:
    """Conform a synthetic event in as many tasks as a batch has; returns how many tasks did.

    Without Spark it does nothing: the first batch reports the error and is retried.
    """
    spark = load_settings().spark
    try:
        socket.create_connection(spark.address, CONNECT_S).close()  # the client would retry for minutes
        tasks = [Probe(event_limits()) for _ in range(spark.parallelism)]
        return sum(report.rows for report in run_tasks(shared(), tasks, probe_task, [Conforms]))
    except Exception as error:
        _log.warning("Spark at %s was not warmed up, so the first batch waits for it: %s", spark.place, error)
        return 0
