"""What Ctrl-C means: for every command that waits or works for long, the line that says what goes on.

A command marks the part of its work to which a line applies; anywhere else nothing goes on.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

NOTHING = "Interrupted: nothing goes on."
# Services do the work, and the command only waits for it.
MOVE = "The move goes on. Follow it with: pulse dataset follow {tenant} {dataset}"
PIPE_RUN = "The run goes on. See it with: pulse pipe status {tenant} {pipe}"
SETTLING = "What was sent lands all the same. See `pulse batch list`, `pulse trace {tenant} <event id>`."
DEMO = (
    "What was sent lands all the same, and the stack stays up: see `pulse status`, stop it with `pulse down`."
)
STOPPING = "The services go on stopping: see `pulse status`."
# The command does the work itself.
SENDING = "Nothing more is sent. {taken} events were taken, and land; it is safe to send all of them again."
ERASURE = "The erasure does not go on, and has not ended: the same command resumes it."
BACKFILL = (
    "The backfill does not go on. Days that are done stay so, others are unchanged; it is safe to repeat."
)
UPKEEP = (
    "The upkeep does not go on. Tasks that are done stay so; Dagster, or the same command, does the rest."
)
LETTERS = "Nothing goes on. Dead letters that are done stay so; the same command takes the rest."
STARTED = "Interrupted; everything that was started has been stopped."
NOT_STARTED = "Interrupted; what runs is in `pulse status`."
TAIL = ""
"""`pulse tail` says as it begins how it ends, and rows land without it."""


@contextmanager
def leaves(line: str, **names: object) -> Iterator[None]:
    """Let an interrupt of the block be told with a line; of nested blocks the inner one's applies.

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
    """An interrupt that is told with a line."""
    return KeyboardInterrupt(line.format(**names))


def line(error: BaseException) -> str:
    """The line of an interrupt; empty if nothing is to be told."""
    return str(error.args[0]) if isinstance(error, KeyboardInterrupt) and error.args else NOTHING
