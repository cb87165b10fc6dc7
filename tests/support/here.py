"""What Spark's tasks would do, done in the process of the tests: in rooms that are about what tasks do.

Of what a small batch takes, two thirds are Spark's: to plan, to compile, and to hand tasks to its workers.
Runs in processes of their own, as those that are killed, have their tasks on Spark.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.connect.session import SparkSession

from pulse_resources import frames, spark

if TYPE_CHECKING:
    from support.ingest import Owner

_run_on_spark = spark.run_tasks


def run_here(
    _: SparkSession, tasks: Sequence[Any], work: Callable[[Any], Iterable[Any]], gives: Sequence[type[Any]]
) -> list[Any]:
    """As `spark.run_tasks`, one task after the other; what goes in and out is packed as it is there."""
    if not tasks:
        return []
    kind = type(tasks[0])
    given = [value for task in frames.values(frames.frame(tasks, [kind]), [kind]) for value in work(task)]
    return list(frames.values(frames.frame(given, gives), gives)) if given else []


ROOMS = frozenset(
    {
        "backfill",
        "curated",
        "entities",
        "erasure",
        "fidelity",
        "ingest",
        "maintenance",
        "monitoring",
        "moves",
        "pipes",
        "states",
    }
)
"""Folders of tests whose tasks run here, but those of tests that are marked `spark` or `slow`."""


class _Place:
    """Where tasks run now."""

    here = False


def run_in_place(
    session: SparkSession,
    tasks: Sequence[Any],
    work: Callable[[Any], Iterable[Any]],
    gives: Sequence[type[Any]],
) -> list[Any]:
    """As `spark.run_tasks`, on Spark or in this process."""
    return (run_here if _Place.here else _run_on_spark)(session, tasks, work, gives)


# Before modules that import it by its name: this is a plugin, which is loaded first.
spark.run_tasks = run_in_place


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    on_spark = any(item.get_closest_marker(name) for name in ("spark", "slow"))
    _Place.here = item.path.parent.name in ROOMS and not on_spark


@contextmanager
def tasks_here() -> Iterator[None]:
    """While the block runs, tasks run in this process, whatever the test is marked with."""
    before, _Place.here = _Place.here, True
    try:
        yield
    finally:
        _Place.here = before


def ingest_here(*owners: "Owner") -> str:
    """As `ingest`, but for Spark; returns the batch."""
    from support.ingest import ingest  # it imports modules of the product

    with tasks_here():
        return ingest(*owners)
