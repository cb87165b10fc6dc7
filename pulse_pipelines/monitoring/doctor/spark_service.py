"""Spark: its address, its version beside the client's, and whether a job runs."""

from collections.abc import Iterator
from importlib.metadata import version

from pulse_pipelines.monitoring.doctor.finding import Finding, reached
from pulse_resources import spark
from pulse_resources.settings import Settings

SPARK = "spark"
_UP = "Start it (`pulse up` starts the embedded one), or correct PULSE_SPARK__REMOTE: sc://host:port"


def look(settings: Settings) -> Iterator[Finding]:
    """Runs the smallest of jobs, by which executors have to start."""
    at = reached(SPARK, *settings.spark.address, _UP)
    yield at
    if not at.ok:
        return
    with spark.session() as session:
        ours, theirs = version("pyspark"), session.version
        same = ours.split(".")[:2] == theirs.split(".")[:2]
        fix = f"Use a Spark Connect server {'.'.join(ours.split('.')[:2])}, or that version's pyspark here"
        yield Finding(SPARK, "version", same, f"{theirs}, the client has {ours}", fix)
        count = session.range(10).count()
        yield Finding(SPARK, "job", count == 10, "a job ran", "Look at the executors in Spark's UI")
