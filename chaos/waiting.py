"""Waiting for conditions."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 300.0
"""Seconds after which something that does not happen counts as hanging, on however slow a machine."""


def wait(condition: Callable[[], bool], otherwise: str, patience_s: float = PATIENCE_S) -> float:
    """Wait until a condition holds; returns the seconds that it took.

    Raises:
        AssertionError: it did not hold in time; contains `otherwise`.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience_s, f"{otherwise}, after {patience_s:.0f} s"
        time.sleep(0.05)
    return time.monotonic() - began


def thread_states(process: int | None) -> set[str]:
    """States of a process's threads, as proc(5) abbreviates them; empty: it has ended."""
    states = set()
    for path in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states


def stands_still(process: int | None) -> bool:
    """Whether all threads of a process are stopped, as at a `stop:` fail point."""
    return thread_states(process) == {"T"}
