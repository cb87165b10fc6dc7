"""One attempt at a move: takes the table's lease, rewrites files in Spark tasks, and commits once.

The commit marks the move as done. An attempt without progress for `ingest.attempt_seconds` ends its own
process. One that dies before the commit leaves unreferenced files, and the next one starts over; one that
resumes after another took over is fenced.
"""

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import rewrite
from pulse_pipelines.maintenance.rewrite import Progress, Session
from pulse_pipelines.moves import evolve, record
from pulse_pipelines.moves.record import Attempt, Move
from pulse_pipelines.tables import leases
from pulse_resources import postgres
from pulse_resources.errors import Fenced, Terminal, UserError
from pulse_resources.process import watchdog
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

LEASE_WAIT_S = 600.0
"""How long a move waits for another rewrite of its table."""


def attempt(
    session: Session,
    tenant: Tenant,
    move_id: str,
    number: int,
    *,
    run_id: str | None = None,
    progress: Progress = lambda written, total: None,
) -> Move:
    """Carry a move out; returns it, done or failed.

    If the dataset was deleted meanwhile, or has moved on, the move fails without an exception.

    Raises:
        Fenced: another attempt owns the move.
        Terminal: the table, or a file of it, is missing or damaged; the move has failed.
        Exception: of any other kind: another attempt follows.
    """
    trying = Attempt(tenant, move_id, number)
    with trying.hold(run_id) as move:
        fail_point("move.owned")
        try:
            _carry_out(session, trying, move, progress)
        except Fenced:
            raise
        except UserError as error:
            trying.fail(str(error))
        except Terminal as error:
            trying.fail(str(error))
            raise
        except Exception as error:
            trying.give_up(f"{type(error).__name__}: {error}")
            raise
    return record.find(tenant, move_id)


def _carry_out(session: Session, trying: Attempt, move: Move, progress: Progress) -> None:
    tenant = trying.tenant

    work = f"attempt {trying.number} at the move {move.move_id} of {tenant.slug}"
    with (
        leases.rewriting(move.dataset_id, wait_seconds=LEASE_WAIT_S),
        watchdog.watched(work, load_settings().ingest.attempt_seconds) as alive,
    ):

        def report_progress(written: int, total: int) -> None:
            alive()
            trying.progress(written, total)
            progress(written, total)

        why = f"a move to {move.schema_uri}"
        names = (tenant, move.dataset_id, move.slug)
        writer = rewrite.on_spark(session, *names, why, run_id=move.run_id, progress=report_progress)
        evolve.carry_out(
            tenant, move.slug, move.dataset_id, move.schema_uri, rewriter=writer, write=trying.done
        )
        if not record.find(tenant, move.move_id).ended:  # it already followed the version
            with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
                trying.done(connection)
