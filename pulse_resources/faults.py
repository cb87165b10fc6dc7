"""Fail points: named places where a test may kill or stop the process, as a power cut would.

    PULSE_FAIL_POINT=settle.before_commit     dies there by SIGKILL
    PULSE_FAIL_POINT=settle.before_swap@3     dies there when it comes by for the third time
    PULSE_FAIL_POINT=stop:after.land          stops there by SIGSTOP, as a long pause would
    PULSE_FAIL_POINT=hang:move.rewritten      never comes back from there, while its process lives on

    PULSE_POISON=segv:<text>     an event that holds the text ends the process that conforms it, by SIGSEGV
    PULSE_POISON=memory:<text>   ... or has it allocate without end

What a run is told goes with its Spark tasks: at a point that is reached in one, both processes die. A test
may also have its own process do something there (`at`): what another one might do just then.
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
"""Bytes at a time."""
_passed: Counter[str] = Counter()
_acts: dict[str, Callable[[], object]] = {}


def fail_point(name: str) -> None:
    """Die, stop or act here when a test asks for it; otherwise nothing."""
    if act := _acts.get(name):
        act()
    told = os.environ.get(VARIABLE)
    if told is None:
        return
    action, _, place = told.rpartition(":")
    point, _, which = place.partition("@")
    if point != name:
        return
    _passed[name] += 1
    if _passed[name] == int(which or 1):
        while action == "hang":
            time.sleep(1)
        signal_ = signal.SIGSTOP if action == "stop" else signal.SIGKILL
        if run := os.environ.get(RUN):
            with suppress(ProcessLookupError):  # another task of the run was here first
                os.kill(int(run), signal_)
        # To this thread: what is sent to the process may reach another first, and this one goes on.
        signal.pthread_kill(threading.get_ident(), signal_)


def poison(payloads: Iterable[bytes]) -> None:
    """Crash, or allocate without end, when a test asks for it and one of these events is the one."""
    told = os.environ.get(POISON)
    if told is None:
        return
    action, _, text = told.partition(":")
    if not any(text.encode() in payload for payload in payloads):
        return
    if action == "segv":
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
    hoard = []
    while True:
        hoard.append(b"x" * HOARDED)


def told() -> Mapping[str, str]:
    """What this process was told, for its Spark tasks."""
    order = {name: os.environ[name] for name in (VARIABLE, POISON) if name in os.environ}
    return order | {RUN: str(os.getpid())} if VARIABLE in order else order


@contextmanager
def as_told(order: Mapping[str, str]) -> Iterator[None]:
    """In a Spark task: what its run was told holds while the block runs."""
    os.environ.update(order)
    _passed.clear()
    try:
        yield
    finally:
        for name in order:
            os.environ.pop(name, None)


@contextmanager
def at(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Have this process call `act` whenever it reaches a point while the block runs."""
    _acts[point] = act
    try:
        yield
    finally:
        del _acts[point]
