"""Sensor that launches moves, and new attempts after a run failed or vanished.

As with batches every attempt has its own run key, and is requested until it has begun.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import dagster as dg

from pulse_pipelines.defs.launches import tenant_tags, vanished
from pulse_pipelines.defs.moves.job import move
from pulse_pipelines.moves import MoveState, record
from pulse_pipelines.moves.record import Attempt, Open
from pulse_resources.errors import Fenced

LAUNCHED_OF_TENANT = 2
"""Runs of a tenant that wait or are about to begin: one proceeds at a time, and each that is queued costs
Dagster's daemon time."""


@dg.sensor(
    job=move,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Launches moves of datasets that rewrite data files. A run that failed or died is "
    "followed by another attempt, later each time; after eight attempts the move has failed, and the "
    "dataset is unchanged.",
)
def dataset_moves(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    for open_move in _next(record.open_moves()):
        try:
            _give_up_dead_attempt(context, open_move)
        except Fenced:  # it has just ended, or begun
            continue
        except Exception:  # one move must not keep all others from being launched
            context.log.exception("move %s was not looked at", open_move.move.move_id)
    if requests := list(_run_requests(_next(record.open_moves()))):
        yield from requests
    else:
        yield dg.SkipReason("no move waits for a run")


def _next(moves: list[Open]) -> Iterator[Open]:
    """Moves that run, and the first ones of each tenant that are ready."""
    ahead = Counter[str]()
    for open_move in moves:
        if open_move.move.state == MoveState.PLANNED:
            if not open_move.ready or ahead[open_move.tenant.slug] == LAUNCHED_OF_TENANT:
                continue
            ahead[open_move.tenant.slug] += 1
        yield open_move


def _run_requests(moves: Iterable[Open]) -> Iterator[dg.RunRequest]:
    for open_move in moves:
        if open_move.move.state == MoveState.PLANNED:
            tenant, planned = open_move.tenant.slug, open_move.move
            yield dg.RunRequest(
                run_key=run_key(open_move),
                run_config=run_config(tenant, planned.move_id, planned.attempt),
                tags={
                    "pulse/move": planned.move_id,
                    "pulse/attempt": str(planned.attempt),
                    "pulse/tenant": tenant,  # dagster.yaml: one at a time
                }
                | tenant_tags([tenant]),
            )


def run_key(open_move: Open) -> str:
    return f"{open_move.move.move_id}:{open_move.move.attempt}"


def run_config(tenant: str, move_id: str, attempt: int) -> dict[str, object]:
    """Build the run config of `move` for one attempt."""
    config = {"tenant": tenant, "move_id": move_id, "attempt": attempt}
    return {"ops": {"move_dataset": {"config": config}}}


def _give_up_dead_attempt(context: dg.SensorEvaluationContext, open_move: Open) -> None:
    why = None
    if open_move.move.state == MoveState.RUNNING:
        if not record.is_leased(open_move.move.move_id):
            why = "the run died"
    else:
        status = vanished(context.instance, run_key(open_move), open_move.move.attempt)
        if status is not None:
            why = f"the run ended before it began the move: {status.value}"
    if why is not None:
        context.log.warning("move %s, attempt %s: %s", open_move.move.move_id, open_move.move.attempt, why)
        Attempt(open_move.tenant, open_move.move.move_id, open_move.move.attempt).give_up(why)
