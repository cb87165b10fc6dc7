"""Fail points: named places where a test may kill or stop the process, like a power failure.

    PULSE_FAIL_POINT=settle.before_commit     kills the process there by SIGKILL
    PULSE_FAIL_POINT=settle.before_swap@3     kills it there on the third pass
    PULSE_FAIL_POINT=stop:after.land          stops it there by SIGSTOP, like a long pause
    PULSE_FAIL_POINT=hang:move.rewritten      blocks there without end, while its process lives on

    PULSE_POISON=segv:<text>     an event that contains the text ends the process that conforms it, by SIGSEGV
    PULSE_POISON=memory:<text>   ... or makes it allocate without end

A run passes these to its Spark tasks: at a fail point reached in a task, both processes die. A test may also
have its own process call a function there (`at`), in place of a concurrent one.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

VARIABLE = "PULSE_FAIL_POINT"
RUN = "PULSE_FAIL_RUN"
POISON = "PULSE_POISON"
HOARDED = 32 * 1024 * 1024
"""Bytes per allocation."""
_passed: Counter[str] = Counter()
_acts: dict[str, Callable[[], object]] = {}


def fail_point(name: str) -> None:
    """Die, stop or act at this point if a test asked for it; otherwise do nothing."""
    if act := _acts.get(name):
        act()
    chosen = os.environ.get(VARIABLE)
    if chosen is None:
        return
    action, _, place = chosen.rpartition(":")
    point, _, pass_number = place.partition("@")
    if point != name:
        return
    _passed[name] += 1
    if _passed[name] == int(pass_number or 1):
        while action == "hang":
            time.sleep(1)
        signal_ = signal.SIGSTOP if action == "stop" else signal.SIGKILL
        if run := os.environ.get(RUN):
            with suppress(ProcessLookupError):  # another task of the run was faster
                os.kill(int(run), signal_)
        # To this thread: a signal to the process may be handled by another thread while this one continues.
        signal.pthread_kill(threading.get_ident(), signal_)


def poison(payloads: Iterable[bytes]) -> None:
    """Crash or exhaust memory if a test asked for it and one of these events contains the text."""
    chosen = os.environ.get(POISON)
    if chosen is None:
        return
    action, _, text = chosen.partition(":")
    if not any(text.encode() in payload for payload in payloads):
        return
    if action == "segv":
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
    hoard = []
    while True:
        hoard.append(b"x" * HOARDED)


def variables() -> Mapping[str, str]:
    """Fail-point variables of this process, for its Spark tasks."""
    environment = {name: os.environ[name] for name in (VARIABLE, POISON) if name in os.environ}
    return environment | {RUN: str(os.getpid())} if VARIABLE in environment else environment


@contextmanager
def with_variables(variables_of_run: Mapping[str, str]) -> Iterator[None]:
    """Apply a run's fail-point variables in a Spark task while the block runs."""
    os.environ.update(variables_of_run)
    _passed.clear()
    try:
        yield
    finally:
        for name in variables_of_run:
            os.environ.pop(name, None)


@contextmanager
def at(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` whenever this process reaches a point while the block runs."""
    _acts[point] = act
    try:
        yield
    finally:
        del _acts[point]
