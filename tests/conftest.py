"""Fixtures live in plugin files, one per outside concern; the report names every version."""

import gc
import os
import signal
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("pulse", deadline=None, max_examples=14)  # no test asserts how long a thing takes
settings.register_profile("fast", deadline=None, max_examples=10)  # `make test-fast`
settings.register_profile("whole", deadline=None, max_examples=60)  # `make test-slow`
settings.load_profile("pulse")
# A JVM of a test lives for minutes: what its second compiler costs would not come back.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# A shell that runs the tests in the background has them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # xdist gives its processes a width of 80, for which tables leave columns out

pytest_plugins = [
    "support.rewriting",
    "support.endings",
    "support.repeated",
    "support.times",
    "support.stack",
    "support.faults",
    "support.ingest",
    "support.http",
    "support.curated",
    "support.traces",
    "support.browser",
    "support.catalog",
    "support.own_tables",
    "support.trino",
    "support.sql",
]

STARTING = frozenset({"stack", "home", "layout", "room"})
"""Fixtures that start services."""
OWN_STACK = ("test_live.py", "test_own_services.py")
WAITING = ("test_attacks", "test_connections", "test_endings", "test_local_stack", "test_rates")
"""Files whose tests wait for most of their time."""
SERVICES = ("pyspark", "dagster", "pyiceberg", "duckdb", "confluent-kafka", "psycopg", "pyarrow")


def pytest_collection(session: pytest.Session) -> None:
    """Modules and tests stay to the end: the collector would visit millions of objects again and again."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # by default it takes a fifteenth of the processor time


def pytest_report_header(config: pytest.Config) -> str:
    return "pulse with " + ", ".join(f"{name} {version(name)}" for name in SERVICES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs services (`make test-fast` leaves it out) and what samples leave out; order the files.

    First those that start a stack of their own, which take longest. Last those that need no services, which
    fill the time until the slowest worker ends. Those that wait are spread among the others, which compute.
    """
    for item in items:
        if STARTING & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.stack)
    mark_outside_samples(items)
    serviced = {item.path for item in items if item.get_closest_marker("stack")}
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [path for path in files if path.stem in WAITING]
    first = [path for name in OWN_STACK for path in files if path.name == name]
    others = [path for path in files if path not in {*first, *waiting}]
    others.sort(key=lambda path: path not in serviced)
    distance = len(others) // (len(waiting) + 1)
    for number, path in enumerate(waiting, 1):
        others.insert(number * (distance + 1) - 1, path)
    places = {path: place for place, path in enumerate([*first, *others])}
    items.sort(key=lambda item: places[item.path])


def mark_outside_samples(items: list[pytest.Item]) -> None:
    """Of a test with `sample(n)`, n of its cases stay in `make test`; all others become slow ones.

    They are spread evenly over the cases, the first among them.
    """
    cases = defaultdict[tuple[Path, str], list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            cases[item.path, item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        sample = same[0].get_closest_marker("sample")
        assert sample
        (size,) = sample.args
        sampled = {number * len(same) // size for number in range(size)}
        for number, item in enumerate(same):
            if number not in sampled:
                item.add_marker(pytest.mark.slow)
