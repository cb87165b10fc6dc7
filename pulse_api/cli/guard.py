"""How the command line ends: the exit code of every error, and its one line for a person."""

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from typer.core import TyperGroup

from pulse_api.cli import interrupted
from pulse_api.cli.output import remark, shown
from pulse_resources.errors import PulseError, UserError, first_line
from pulse_resources.home import pulse_home

FAILED, WRONG, UNDECIDED, INTERRUPTED, CLOSED = 1, 2, 3, 130, 141
CODES = {
    0: "success",
    FAILED: "failure: a service that does not answer, or a check that does not hold",
    WRONG: "a wrong request: an option, a name or a value",
    UNDECIDED: "a person has to decide: a sync is held",
    INTERRUPTED: "interrupted by Ctrl-C",
    CLOSED: "the reader of the output has ended, such as `head -1` in a pipe",
}
"""Every exit code, with its meaning. Codes of signals are those that a shell reports."""
_START = "Is the stack up? Check with `pulse status`, start it with `pulse up`."
_AGAIN = "Check with `pulse status` that it is up again; then repeat the command."
_FOLDER = "Pulse keeps its data in $PULSE_HOME: name a folder that this account may write to."
_PLACE = "Name a place that exists, and that this account may use."
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUTSIDE = {
    ("psycopg.errors", "AdminShutdown"): ("Postgres ended the connection", _AGAIN),
    ("psycopg.errors", "CrashShutdown"): ("Postgres ended the connection", _AGAIN),
    ("psycopg", "OperationalError"): ("Postgres does not answer", _START),
    ("confluent_kafka", "KafkaException"): ("Kafka", _START),
    ("httpx", "RemoteProtocolError"): ("the API ended the connection", _AGAIN),
    ("httpx", "ReadError"): ("the API ended the connection", _AGAIN),
    ("httpx", "WriteError"): ("the API ended the connection", _AGAIN),
    ("httpx", "TransportError"): ("the API does not answer", _START),
    ("pyspark.errors", "PySparkException"): ("a task of Spark failed", _START),
}
"""Errors of client libraries, by the module that must be imported to raise them, with their meaning and what
to do; the first that applies counts."""


class Guarded(TyperGroup):
    """Outermost group: an error of a command becomes one line on stderr, and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a known error becomes a line and an exit code."""
        try:
            return super().invoke(ctx)
        except typer.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            code = code_of(error)
            if not tell(error):
                raise
            raise typer.Exit(code) from error


def code_of(error: BaseException) -> int:
    """Exit code of a command that ends with an error; see `CODES`. No other place decides it."""
    if isinstance(error, typer.Exit | typer.BadParameter):
        return error.exit_code
    if _is_interrupt(error):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return CLOSED if _is_closed() else FAILED
    if _is_unanswered(error) or _is_no_text(error):
        return WRONG
    if isinstance(error, OSError):
        return WRONG if error.filename is not None and error.errno not in _FULL else FAILED
    return WRONG if isinstance(error, UserError) else FAILED


def run(command: Callable[[], None]) -> int:
    """Run the command line, write all that it printed, and return its exit code.

    Args:
        command: ends with SystemExit, as those of typer do.
    """
    code = 0
    _make_usable()
    try:
        command()
    except SystemExit as ended:
        # Rich and typer make an exit with 1 of a pipe that is closed.
        code = CLOSED if isinstance(ended.__context__, BrokenPipeError) else int(ended.code or 0)
    except (KeyboardInterrupt, OSError) as error:  # of help, of a complaint, or at the end
        code = code_of(error)
        if not tell(error):
            raise
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = CLOSED if isinstance(error, BrokenPipeError) else code or code_of(error)
            tell(error)
    return code


def _make_usable() -> None:
    """Make stdin a stream, and stdout and stderr ones that write all of what they are given, or fail."""
    if sys.stdin is None:  # it was closed before
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - until the process ends
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream.buffer, io.RawIOBase):
            # By PYTHONUNBUFFERED: it would forget what a pipe, or a disk, does not take at once.
            whole = io.BufferedWriter(stream.buffer)
            text = io.TextIOWrapper(whole, stream.encoding, stream.errors, line_buffering=True)
            setattr(sys, name, text)
    if isinstance(sys.stdout, io.TextIOWrapper):  # as that of stderr: an encoding may not have all letters
        sys.stdout.reconfigure(errors="backslashreplace")


def tell(error: BaseException) -> bool:
    """Tell a person of a known error, in one line on stderr; False for an error that is not known.

    A closed pipe is not reported.
    """
    if _is_interrupt(error):
        if message := interrupted.line(error):
            remark(f"\n{message}" if sys.stderr.isatty() else message)  # a terminal shows ^C before it
        return True
    if isinstance(error, BrokenPipeError) and _is_closed():
        _forget(sys.stdout)
        _forget(sys.stderr)
        return True
    line = _line(error)
    if line is not None:
        complain(line)
    return line is not None


def _line(error: BaseException) -> str | None:
    if isinstance(error, PulseError):
        return str(error)
    if _is_unanswered(error):
        sys.stderr.write("\n")  # after the question
        return "no one answers the question. Answer it in a terminal, or add --yes"
    if _is_no_text(error):
        return "an argument is not text in the terminal's encoding. Write it in UTF-8"
    for (module, name), (meaning, fix) in _OUTSIDE.items():
        if module in sys.modules and isinstance(error, getattr(sys.modules[module], name)):
            return f"{meaning}: {first_line(error)}. {fix}"
    if not isinstance(error, OSError):
        return None
    if error.errno in _FULL:
        _forget(sys.stdout)
        return f"the output cannot be written: {error.strerror}"
    if error.filename is not None:
        at_home = str(error.filename).startswith(str(pulse_home()))
        return f"{error.filename} cannot be used: {error.strerror}. {_FOLDER if at_home else _PLACE}"
    if isinstance(error, ConnectionError | TimeoutError):
        return f"a service does not answer: {first_line(error)}. {_AGAIN}"
    # Arrow's errors of the object store have no number.
    return None if error.errno else f"the object store does not answer: {first_line(error)}. {_START}"


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C; at a question it is an abort."""
    at_question = isinstance(error, typer.Abort) and isinstance(error.__context__, KeyboardInterrupt)
    return at_question or isinstance(error, KeyboardInterrupt)


def _is_unanswered(error: BaseException) -> bool:
    """Whether a question is at the end of standard input."""
    return isinstance(error, typer.Abort) and isinstance(error.__context__, EOFError)


def _is_no_text(error: BaseException) -> bool:
    """Whether an argument has bytes that do not decode to letters; only a path may have them."""
    return isinstance(error, UnicodeEncodeError) and any(not _is_text(argument) for argument in sys.argv)


def _is_text(argument: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


def _is_closed() -> bool:
    """Whether stdout or stderr is a pipe whose reader has ended."""
    ends = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # no file
            ends.register(stream.fileno(), 0)  # a closed end is reported whatever is asked for
    return bool(ends.poll(0))


def _forget(stream: TextIO) -> None:
    """Drop what a stream has not written: Python would try again at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(message: str) -> None:
    """Print an error on stderr, for a person, unless its disk is full."""
    console = Console(stderr=True, soft_wrap=True)
    try:
        console.print(f"[red]error:[/red] {shown(message)}", highlight=False)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _forget(sys.stderr)
