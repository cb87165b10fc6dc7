"""`pulse batch`: what is in flight, and another try for what is stuck."""

from typing import Annotated

import typer

from pulse_api.cli.output import AsJson, emit, say, show_table
from pulse_pipelines.ingest import attempts
from pulse_resources.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Batches in flight, and another try for stuck ones.")


@app.command("list")
def list_batches(as_json: AsJson = False) -> None:
    """List the batches that are not settled, oldest first.

    Example: pulse batch list
    """
    found = attempts.open_batches()
    if as_json:
        emit(found)
        return
    rows = ((b.batch_id, b.attempt, b.state, f"{b.age_s:,.0f} s", b.last_error) for b in found)
    show_table(("batch", "attempt", "state", "age", "last error"), rows, empty="Everything is settled")


@app.command("retry")
def retry_batch(
    batch_id: Annotated[str, typer.Argument(help="Id from `pulse batch list`.")],
    as_json: AsJson = False,
) -> None:
    """Plan a stuck batch again, once the cause is removed. Nothing can land twice.

    Example: pulse batch retry 4bf92f35
    """
    if not attempts.unstick(batch_id):
        raise NotFound("no such batch is stuck", batch=batch_id)
    if as_json:
        emit({"batch_id": batch_id, "state": "planned"})
    else:
        say(f"batch {batch_id} is planned again; the sensor launches it")
