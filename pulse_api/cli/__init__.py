"""`pulse`: run a stack, register tenants and datasets, inspect what landed, reconcile it.

Exit codes are in `guard`.
"""

import logging
import os
import sys
from typing import Annotated

import typer

from pulse_api.cli import guard
from pulse_api.cli.output import say
from pulse_api.cli.parts import HELP_OPTIONS, group_of

PARTS = {
    # Subcommand of `pulse`: its module, and its line in `pulse --help`.
    "up": ("stack", "Start every service of Pulse on this machine; wait until all are ready."),
    "down": ("stack", "Stop every service that `pulse up` started; wait until all have ended."),
    "status": (
        "stack",
        "Show every service, the events that wait to be ingested, and problems that need a person.",
    ),
    "doctor": (
        "doctor",
        "Check addresses, versions, rights, clocks, topics and disk of all services that the settings name.",
    ),
    "config": (
        "config",
        "Show every setting: its environment variable, value and source. Secrets are hidden.",
    ),
    "apply": (
        "apply",
        "Set a tenant up as a manifest says: its limits, schemas, datasets, keys and pipes.",
    ),
    "collect": (
        "collect",
        "Send events through the HTTP API: JSON objects, on one line each or on several, or one array.",
    ),
    "preview": ("lake", "Show the newest rows of a dataset."),
    "snapshots": (
        "lake",
        "List a dataset's snapshots, newest first; `pulse preview` can read each of them.",
    ),
    "sql": ("sql", "Run one SELECT over a tenant's datasets and own tables; every query is recorded."),
    "ask": ("ask", "Answer a question over a tenant's datasets, with the query that gave the answer."),
    "describe": ("ask", "Show what questions can use: measures, dimensions, units and synonyms."),
    "console": ("console", "Print the address of a tenant's console, with a key of one hour."),
    "mcp": ("mcp", "Serve a tenant's lake to an MCP client, over standard input and output."),
    "tail": ("tail", "Print the rows of a dataset as they land, until it is interrupted."),
    "trace": ("trace", "Show what became of one event: where it landed, or why it did not."),
    "reconcile": (
        "lake",
        "Prove that every drained event is a row, a duplicate or a dead letter, exactly once.",
    ),
    "backfill": ("backfill", "Rebuild days of a dataset from the raw zone, each replaced in one commit."),
    "erase": (
        "erase",
        "Remove a person's events from tables, their history, the raw zone, dead letters and summaries.",
    ),
    "summary": ("summary", "Show the precomputed summaries of a dataset's days."),
    "usage": ("usage", "Show what a tenant used, per month, beside its limits."),
    "demo": (
        "demo",
        "Send real flights and weather of 17 tenants through Pulse, and account for every event.",
    ),
    "tenant": ("tenant", "Tenants: the owners of events, schemas and datasets."),
    "key": ("key", "API keys of a tenant, for the HTTP API."),
    "schema": ("schema", "JSON Schemas that a tenant publishes; a published version never changes."),
    "dataset": ("dataset", "Datasets: Iceberg tables, each named by a slug."),
    "source": ("source", "Sources: addresses, with credentials, of what pipes read and write."),
    "pipe": (
        "pipe",
        "Pipes: copy tables, files, feeds and query results into datasets, and datasets to sinks.",
    ),
    "state": ("state", "States: the newest event per key of a dataset of events."),
    "index": ("index", "Indexes of datasets of entities, by which subsets are read."),
    "sync": ("sync", "Syncs: parts that were sent to a dataset of entities as one unit."),
    "dlq": (
        "dlq",
        "Dead letters: events that could not land. Inspect them, remove the cause, replay them.",
    ),
    "batch": ("batch", "Batches: list running and recent ones, retry a stuck one."),
    "upkeep": ("upkeep", "Table maintenance: compaction, history, orphan files, retention."),
    "restore": (
        "restore",
        "After Postgres or the object store came back from a backup: compare and repair.",
    ),
    "lake": ("connect", "Access to the lake for other engines, through the REST catalog."),
    "alerts": ("alerts", "Alerts: current and past problems, and whether they were sent."),
}

app = typer.Typer(
    name="pulse",
    cls=group_of(PARTS),
    no_args_is_help=True,
    context_settings={"help_option_names": list(HELP_OPTIONS)},
    pretty_exceptions_enable=False,
    help="Many tenants' events into governed Iceberg tables, exactly once.\n\n"
    "Start with `pulse up`, then `pulse tenant create`, `pulse schema publish`, "
    "`pulse dataset create`; see it all run with `pulse demo`.",
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in guard.CODES.items()) + ".",
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version  # this import takes as long as all others here

        say(version("pulse"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version of Pulse."),
    ] = False,
) -> None:
    """The commands are those of the parts."""


def main() -> None:
    """Entry point."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # it repeats the printed error
    sys.exit(guard.run(_command))


def _command() -> None:
    try:
        app()
    finally:
        postgres = sys.modules.get("pulse_resources.postgres")
        # Shell completion must not wait for open pools to close.
        if postgres is not None and "_PULSE_COMPLETE" not in os.environ:
            postgres.close_pools()
