"""`pulse`: set up a stack, register tenants and datasets, look at what landed, prove that it adds up."""

import logging
import sys

import psycopg
import typer
from confluent_kafka import KafkaException
from rich.console import Console

from pulse_api.cli import batch, demo, lake, registry, stack
from pulse_resources.errors import PulseError, UserError
from pulse_resources.postgres import close_pools

app = typer.Typer(
    name="pulse",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Many tenants' events into governed Iceberg tables, exactly once.\n\n"
    "Start with `pulse up`, then `pulse tenant create`, `pulse schema publish`, "
    "`pulse dataset create`; see it all run with `pulse demo`.",
)
for part in (stack, lake, demo):
    app.registered_commands.extend(part.app.registered_commands)
app.add_typer(registry.tenants, name="tenant")
app.add_typer(registry.schemas, name="schema")
app.add_typer(registry.datasets, name="dataset")
app.add_typer(batch.app, name="batch")


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 it failed or does not hold, 2 the request was wrong."""
    errors = Console(stderr=True, soft_wrap=True)
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # it repeats what is said below
    try:
        app()
    except PulseError as error:
        errors.print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except psycopg.OperationalError as error:
        errors.print(f"[red]error:[/red] Postgres does not answer: {error}".strip(), highlight=False)
        errors.print("Is the stack up? Look with `pulse status`, start it with `pulse up`.")
        sys.exit(1)
    except KafkaException as error:
        errors.print(f"[red]error:[/red] Kafka: {error.args[0].str()}", highlight=False)
        sys.exit(1)
    finally:
        close_pools()
