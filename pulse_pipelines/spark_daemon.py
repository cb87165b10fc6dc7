"""Spark's Python daemon, whose workers begin with everything imported that a batch's tasks need.

Spark forks a Python worker per core from its daemon, and does so anew after a minute without a task. The
daemon of pyspark has imported nothing but pyspark: each worker then imports for two seconds of its core.
"""

from pyspark import daemon

from pulse_pipelines.backfill import rebuild
from pulse_pipelines.stages import drain, land

PRELOADED = (drain, land, rebuild)

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
