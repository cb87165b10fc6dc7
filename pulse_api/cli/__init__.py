"""`pulse`: set up a stack, register tenants and datasets, look at what landed, prove that it adds up.

Exit codes: 0 done, 1 it failed or does not hold, 2 the request was wrong.
"""

import logging
import os

import typer

from pulse_api.cli import (
    alerts,
    backfill,
    batch,
    collect,
    dataset,
    demo,
    dlq,
    key,
    lake,
    schema,
    stack,
    tenant,
)
from pulse_api.cli.guard import Guarded
from pulse_resources.postgres import close_pools

app = typer.Typer(
    name="pulse",
    cls=Guarded,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Many tenants' events into governed Iceberg tables, exactly once.\n\n"
    "Start with `pulse up`, then `pulse tenant create`, `pulse schema publish`, "
    "`pulse dataset create`; see it all run with `pulse demo`.",
    epilog="Exit codes: 0 done, 1 it failed or does not hold, 2 the request was wrong.",
)
for part in (stack.app, collect.app, lake.app, backfill.app, tenant.usages, demo.app):
    app.registered_commands.extend(part.registered_commands)
app.add_typer(tenant.app, name="tenant")
app.add_typer(key.app, name="key")
app.add_typer(schema.app, name="schema")
app.add_typer(dataset.app, name="dataset")
app.add_typer(dlq.app, name="dlq")
app.add_typer(batch.app, name="batch")
app.add_typer(alerts.app, name="alerts")


def main() -> None:
    """Entry point."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # it repeats what is said anyway
    try:
        app()
    finally:
        if "_PULSE_COMPLETE" not in os.environ:  # a completion waits for nothing, open pools included
            close_pools()
