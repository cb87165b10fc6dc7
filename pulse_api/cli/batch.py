"""`pulse batch`: batches in flight and settled lately, and a retry of stuck ones."""

from typing import Annotated

import typer

from pulse_api.cli.output import AsJson, emit, emit_or_say, show_table
from pulse_pipelines.ingest import attempts
from pulse_pipelines.monitoring import batches
from pulse_resources.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Batches: list running and recent ones, retry a stuck one.")


@app.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of settled batches to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """List the batches in flight and those that settled recently, newest first.

    Example: pulse batch list --limit 50
    """
    recent = batches.batches(limit)
    if as_json:
        emit(recent)
        return
    rows = (
        (
            b.batch_id,
            b.state,
            b.attempt,
            b.settled_at or b.planned_at,
            b.tenants,
            b.events,
            b.landed,
            b.duplicates,
            b.dead_letters,
            b.last_error,
        )
        for b in recent
    )
    columns = ("batch", "state", "attempt", "settled or planned", "tenants", "events", "landed", "duplicates")
    spare = ("tenants", "attempt", "duplicates", "dead letters", "landed", "settled or planned")
    show_table(
        (*columns, "dead letters", "last error"), rows, empty="No batch has been planned yet", spare=spare
    )


@app.command("retry")
def retry_batch(
    batch_id: Annotated[str, typer.Argument(help="Id from `pulse batch list`.")],
    as_json: AsJson = False,
) -> None:
    """Plan a stuck batch again, once the cause is removed. Nothing can land twice.

    Example: pulse batch retry 4bf92f35
    """
    if not attempts.unstick(batch_id):
        raise NotFound(
            "no batch with this id is stuck", fix="List the batches: pulse batch list", batch=batch_id
        )
    line = f"batch {batch_id} is planned again; the sensor launches it"
    emit_or_say({"batch_id": batch_id, "state": "planned"}, line, as_json)
