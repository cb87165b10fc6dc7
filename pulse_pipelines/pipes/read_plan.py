"""The plan by which a run reads its source, of any kind."""

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
class ReadPlan:
    """How a run reads and publishes its rows, if there are any, and the position in the source after them."""

    is_full: bool
    """Whether it reads everything: entities that are missing from it are deleted."""
    position: str | None
    """None: there is none, or the last task returns it with its rows."""
    as_of: datetime
    """The moment of the source up to which the position stands for everything."""
    load: Callable[[Any], Iterator[Loaded]] | None = None
    """Function of a Spark task ..."""
    tasks: Sequence[Any] = ()
    """... and what each of them is called with."""
    continues: bool = False
    """Whether it continues the sync that an earlier run has left open."""
    drive: Callable[[SparkSession], list[Loaded]] | None = None
    """Instead of tasks: the work that the run's own process does with Spark."""
