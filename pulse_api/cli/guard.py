"""One line and an exit code for every error: the outermost group of the command line."""

from typing import Any

import httpx
import psycopg
import typer
from confluent_kafka import KafkaException
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from pulse_api.cli.output import harmless
from pulse_resources.errors import PulseError, UserError
from pulse_resources.settings import misspelt

FAILED, WRONG = 1, 2
_START = "Is the stack up? Look with `pulse status`, start it with `pulse up`."


class Guarded(TyperGroup):
    """Says what went wrong on one line of stderr; exit code 2 where the request is wrong, else 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that is known becomes a line and an exit code."""
        for variable, meant in misspelt():
            advice = f"did you mean {meant}?" if meant else "see pulse_resources/settings.py"
            complain(f"{variable} is no setting and is ignored: {advice}", "warning")
        try:
            return super().invoke(ctx)
        except PulseError as error:
            complain(str(error))
            raise typer.Exit(WRONG if isinstance(error, UserError) else FAILED) from error
        except ValidationError as error:
            complain(_setting(error))
            raise typer.Exit(WRONG) from error
        except psycopg.OperationalError as error:
            complain(f"Postgres does not answer: {first_line(error)}. {_START}")
            raise typer.Exit(FAILED) from error
        except KafkaException as error:
            complain(f"Kafka: {error.args[0].str()}. {_START}")
            raise typer.Exit(FAILED) from error
        except httpx.TransportError as error:
            complain(f"the API does not answer: {first_line(error)}. {_START}")
            raise typer.Exit(FAILED) from error


def _setting(error: ValidationError) -> str:
    """Which settings are wrong, by their environment variables, and why."""
    found = (
        f"PULSE_{'__'.join(str(part).upper() for part in each['loc'])}: {each['msg']}"
        for each in error.errors()
    )
    return f"the settings are wrong: {'; '.join(found)}"


def complain(message: str, severity: str = "error") -> None:
    """An error on stderr, for a person."""
    Console(stderr=True, soft_wrap=True).print(
        f"[red]{severity}:[/red] {escape(harmless(message))}", highlight=False
    )


def first_line(error: Exception) -> str:
    """What an error says, without the hints that its library adds."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
