"""Runs of pipes, and all that follows from them."""

from pulse_pipelines.ingest import deletions, plan
from pulse_pipelines.pipes.run import Sent, run
from support.ingest import Owner, ingest
from support.lake import spark


def bring(owner: Owner, name: str = "planes", *, full: bool = False) -> Sent:
    """Run a pipe until everything that it sent has settled, deletions too."""
    sent = run(spark(), owner.tenant, name, 2, full=full)
    settle(owner)
    return sent


def settle(owner: Owner) -> None:
    """Land what waits, and send deletions, until there are none."""
    while deletions.send_of(owner.tenant) or owner.tenant.tenant_id in plan.ingest_status().waiting:
        ingest(owner)
