"""Ctrl-C: for every long command, the line that says what continues without it.

A command marks the part of its work to which a line applies; anywhere else, nothing continues.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

NOTHING = "Interrupted: nothing continues."
# Services do the work, and the command only waits for it.
MOVE = "The move continues. Follow it with: pulse dataset follow {tenant} {dataset}"
PIPE_RUN = "The run continues. See it with: pulse pipe status {tenant} {pipe}"
SETTLING = "The events that were sent will land. See `pulse batch list`, `pulse trace {tenant} <event id>`."
DEMO = (
    "The events that were sent will land. The stack stays up: see `pulse status`, stop it with `pulse down`."
)
STOPPING = "The services continue to stop: see `pulse status`."
# The command does the work itself.
SENDING = "Sending has stopped. {taken} events were accepted and will land; it is safe to send all again."
ERASURE = "The erasure has stopped before its end: the same command resumes it."
BACKFILL = "The backfill has stopped. Finished days are rebuilt, others are unchanged; it is safe to repeat."
UPKEEP = "The upkeep has stopped. Finished tasks stay finished; Dagster, or the same command, does the rest."
REPAIR = "The repair has stopped. Finished steps stay finished; the same command does the rest."
LETTERS = "It has stopped. Finished dead letters stay finished; the same command continues with the rest."
STARTED = "Interrupted; everything that was started has been stopped."
NOT_STARTED = "Interrupted; what runs is in `pulse status`."
TAIL = ""
"""`pulse tail` says as it begins how it ends, and rows land without it."""


@contextmanager
def leaves(line: str, **names: object) -> Iterator[None]:
    """Give an interrupt of the block a line; among nested blocks the inner one's applies.

    Args:
        names: values for the line's fields.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise (error if error.args else of(line, **names)) from None


@contextmanager
def later() -> Iterator[None]:
    """Let an interrupt of the block come at its end: one within an import leaves a module half loaded."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def of(line: str, **names: object) -> KeyboardInterrupt:
    """An interrupt with its line."""
    return KeyboardInterrupt(line.format(**names))


def line(error: BaseException) -> str:
    """The line of an interrupt; empty if there is nothing to report."""
    return str(error.args[0]) if isinstance(error, KeyboardInterrupt) and error.args else NOTHING
