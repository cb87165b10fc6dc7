"""`pulse batch`: what is in flight, and another try for what is stuck."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pulse_pipelines.stages import attempts
from pulse_resources.errors import NotFound

app = typer.Typer(no_args_is_help=True, help="Batches in flight, and another try for stuck ones.")


@app.command("list")
def list_batches() -> None:
    """List the batches that are not settled, oldest first."""
    table = Table("batch", "attempt", "state", "age", "last error")
    for batch in attempts.open_batches():
        table.add_row(
            batch.batch_id,
            str(batch.attempt),
            batch.state,
            f"{batch.age_s:,.0f} s",
            batch.last_error or "",
        )
    Console().print(table)


@app.command("retry")
def retry_batch(
    batch_id: Annotated[str, typer.Argument(help="Id from `pulse batch list`.")],
) -> None:
    """Plan a stuck batch again, once the cause is removed. Nothing can land twice."""
    if not attempts.unstick(batch_id):
        raise NotFound("no such batch is stuck", batch=batch_id)
    Console().print(f"batch {batch_id} is planned again; the sensor launches it")
