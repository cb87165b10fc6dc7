"""Waiting for what must come to pass."""

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from chaos.batches import log


def wait(condition: Callable[[], bool], otherwise: str, patience_s: float = 60.0) -> float:
    """Wait for a condition; returns the seconds that it took.

    Raises:
        AssertionError: it did not come in time; says what stands in `otherwise`.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < patience_s, f"{otherwise}, after {patience_s:.0f} s"
        time.sleep(0.05)
    return time.monotonic() - began


def stopped(process: BaseProcess) -> bool:
    """Whether a process stands still at its fail point.

    Raises:
        AssertionError: it ended.
    """
    assert process.is_alive(), f"the run ended before its fail point; see {log()}"
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
