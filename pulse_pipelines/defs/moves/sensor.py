"""Sensor that launches moves, and new attempts after a run failed or vanished.

As with batches every attempt has its own run key, and is requested until it has begun.
"""

from collections.abc import Iterator

import dagster as dg

from pulse_pipelines.defs.launches import vanished
from pulse_pipelines.defs.moves.job import move
from pulse_pipelines.defs.tags import tenant_tags
from pulse_pipelines.moves import State, record
from pulse_pipelines.moves.record import Attempt, Open
from pulse_resources.errors import Fenced


@dg.sensor(
    job=move,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches the moves of datasets that write data files again. A run that failed or died is "
    "followed by another attempt, later each time; after eight the move has failed, and the dataset is as it "
    "was.",
)
def dataset_moves(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    for each in record.open_moves():
        try:
            _give_up_dead_attempt(context, each)
        except Fenced:  # it has just ended, or begun
            continue
        except Exception:  # one move must not keep all others from being launched
            context.log.exception("move %s was not looked at", each.move.move_id)
    if requests := list(_run_requests(record.open_moves())):
        yield from requests
    else:
        yield dg.SkipReason("no move waits for a run")


def _run_requests(moves: list[Open]) -> Iterator[dg.RunRequest]:
    for each in moves:
        if each.move.state == State.PLANNED and each.ready:
            tenant, asked = each.tenant.slug, each.move
            yield dg.RunRequest(
                run_key=run_key(each),
                run_config=run_config(tenant, asked.move_id, asked.attempt),
                tags={
                    "pulse/move": asked.move_id,
                    "pulse/attempt": str(asked.attempt),
                    "pulse/tenant": tenant,  # dagster.yaml: one at a time
                }
                | tenant_tags([tenant]),
            )


def run_key(each: Open) -> str:
    return f"{each.move.move_id}:{each.move.attempt}"


def run_config(tenant: str, move_id: str, attempt: int) -> dict[str, object]:
    """Build the run config of `move` for one attempt."""
    config = {"tenant": tenant, "move_id": move_id, "attempt": attempt}
    return {"ops": {"move_dataset": {"config": config}}}


def _give_up_dead_attempt(context: dg.SensorEvaluationContext, each: Open) -> None:
    why = None
    if each.move.state == State.RUNNING:
        if not record.lease_held(each.move.move_id):
            why = "the run died"
    elif each.ready:
        status = vanished(context.instance, run_key(each), each.move.attempt)
        if status is not None:
            why = f"the run ended before it began the move: {status.value}"
    if why is not None:
        context.log.warning("move %s, attempt %s: %s", each.move.move_id, each.move.attempt, why)
        Attempt(each.tenant, each.move.move_id, each.move.attempt).give_up(why)
