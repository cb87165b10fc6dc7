"""A run is stopped, its batch is taken over and settles, and the run continues: it must be fenced."""

import os
import random
import signal
from functools import partial

from chaos import batches
from chaos.load import Load
from chaos.scenario import Outcome, ReportProgress
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.surroundings import superuser, with_settings
from chaos.waiting import PATIENCE_S, stands_still, wait
from pulse_pipelines.ingest import attempts
from pulse_resources.process.faults import VARIABLE

EVENTS = 100
POINTS = (
    "after.drain_and_conform",
    "after.dedup_gate",
    "after.land",
    "settle.before_swap",
    "settle.before_commit",
)
# As the server does itself when the keep-alives of a lost client fail.
END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s OR (application_name = 'pulse' AND state = 'idle in transaction')
"""


def run(stack: Stack | None, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Stop runs at steps drawn by the seed, and let another attempt overtake them."""
    draw, load, sent = random.Random(seed), Load(seed), Sent(batches.make_tenant())
    with with_settings(**batches.ENDLESS_ATTEMPTS):
        for number in range(1, round(amount) + 1):
            sent.send(load.events(EVENTS))
            batch = batches.plan([sent.tenant])
            point = draw.choice(POINTS)
            slow = batches.start(batch.batch_id, batch.attempt, **{VARIABLE: f"stop:{point}"})
            wait(partial(stands_still, slow.pid), f"the run did not come to {point}")
            _end_sessions(batch.batch_id)
            attempts.next_attempt(batch.batch_id, batch.attempt, "the run does not answer")
            batches.finish(batch, remaining_attempts=1)
            os.kill(slow.pid or 0, signal.SIGCONT)
            slow.join(PATIENCE_S)
            assert slow.exitcode == 1, (
                f"stopped at {point}, it ended with {slow.exitcode}; see {batches.log()}"
            )
            report_progress(number)
        batches.publish_overdue()
    return Outcome([sent], f"{amount:.0f} pauses")


def _end_sessions(batch: str) -> None:
    with superuser() as connection:
        connection.execute(END_SESSIONS, [f"pulse-batch/{batch}"])
