"""What a run of a pipe reads, whatever kind of source it reads it from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.pipes.publishing import Loaded


def most_tasks(parallelism: int) -> int:
    """Most tasks of a run: each holds a place of Spark while its source is slow, which batches need, too."""
    return max(1, parallelism // 2)


@dataclass(frozen=True)
class Wanted:
    """What publishes all that a run reads, if there is anything, and the position in the source after it."""

    is_full: bool
    """Whether it is all that there is: entities that are not among it are deleted."""
    position: str | None
    """None: there is none, or the last task tells it with what it has loaded."""
    as_of: datetime
    """The moment of the source up to which the position stands for everything."""
    load: Callable[[Any], Iterator[Loaded]] | None = None
    """Function of a Spark task ..."""
    tasks: Sequence[Any] = ()
    """... and what each of them is called with."""
    goes_on: bool = False
    """Whether it is the rest of what an earlier run began to bring, and has left open as one sync."""
    drive: Callable[[SparkSession], list[Loaded]] | None = None
    """Instead of tasks: what the process of the run does itself, with Spark."""
