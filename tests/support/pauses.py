"""Services of the stack that stand still, as a long pause of their machine would have it."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from chaos.waiting import thread_states, wait
from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings


def stop(pids: Iterable[int]) -> None:
    """Stop processes, and wait until none of their threads runs: one may still answer after the signal."""
    stopped = list(pids)
    send(stopped, signal.SIGSTOP)
    # A zombie has ended before the signal came.
    wait(lambda: all(thread_states(pid) <= {"T", "Z"} for pid in stopped), f"{stopped} are not stopped")


def send(pids: Iterable[int], signal_: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal_)


@contextmanager
def paused(service: str) -> Iterator[None]:
    """All processes of a service are stopped while the block runs."""
    recorded = state.read(Layout(load_settings().home))
    assert recorded is not None
    process = recorded.services[service].process
    assert process is not None
    family = processes.family(process, processes.table())
    try:
        stop(family)
        yield
    finally:
        send(family, signal.SIGCONT)
