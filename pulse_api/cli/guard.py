"""Error handling of the command line: one line and an exit code for every known error."""

import errno
import os
import sys
from contextlib import suppress
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from pulse_api.cli.output import shown
from pulse_resources.errors import PulseError, UserError, first_line
from pulse_resources.home import pulse_home

FAILED, WRONG = 1, 2
_START = "Is the stack up? Look with `pulse status`, start it with `pulse up`."
_FOLDER = "All that Pulse keeps is in $PULSE_HOME: name a folder that this account may write to."
_PLACE = "Name a place that exists, and that this account may use."
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUTSIDE = {
    ("psycopg", "OperationalError"): "Postgres does not answer",
    ("confluent_kafka", "KafkaException"): "Kafka",
    ("httpx", "TransportError"): "the API does not answer",
    ("pyspark.errors", "PySparkException"): "a task of Spark failed",
}
"""Errors of client libraries, by the module that must be imported to raise them, with their meaning."""


class Guarded(TyperGroup):
    """Outermost group: prints an error as one line on stderr; exit code 2 for a wrong request, else 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a known error becomes a line and an exit code."""
        try:
            return super().invoke(ctx)
        except PulseError as error:
            complain(str(error))
            raise typer.Exit(WRONG if isinstance(error, UserError) else FAILED) from error
        except OSError as error:
            if error.errno in _FULL:
                _forget_output()
                complain(f"the output cannot be written: {error.strerror}")
                raise typer.Exit(FAILED) from error
            if error.filename is None:  # an OSError of a socket or a pipe
                raise
            at_home = str(error.filename).startswith(str(pulse_home()))
            complain(f"{error.filename} cannot be used: {error.strerror}. {_FOLDER if at_home else _PLACE}")
            raise typer.Exit(WRONG) from error
        except Exception as error:
            if (meaning := _meaning(error)) is None:
                raise
            complain(f"{meaning}: {first_line(error)}. {_START}")
            raise typer.Exit(FAILED) from error


def _forget_output() -> None:
    """Drop what stdout has not written: Python would try again at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _meaning(error: Exception) -> str | None:
    """Meaning of an error raised by a client of an external service; None for other errors."""
    for (module, name), meaning in _OUTSIDE.items():
        if module in sys.modules and isinstance(error, getattr(sys.modules[module], name)):
            return meaning
    return None


def complain(message: str, severity: str = "error") -> None:
    """Print an error on stderr, for a person."""
    Console(stderr=True, soft_wrap=True).print(f"[red]{severity}:[/red] {shown(message)}", highlight=False)
