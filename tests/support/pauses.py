"""Services of the stack that stand still, as a long pause of their machine would have it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings


@contextmanager
def paused(service: str) -> Iterator[None]:
    """All processes of a service are stopped by SIGSTOP while the block runs."""
    found = state.read(Layout(load_settings().home))
    assert found is not None
    process = found.services[service].process
    assert process is not None
    family = processes.family(process, processes.table())
    try:
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in family:
            os.kill(pid, signal.SIGCONT)
