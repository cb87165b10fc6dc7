"""Runs of pipes, and all that follows from them."""

from pulse_api.http import metrics
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


def exposed(owner: Owner) -> dict[tuple[str, str], float]:
    """What is measured of a tenant's pipes now, by metric and outcome."""
    return {
        (sample.name, sample.labels.get("outcome", "")): sample.value
        for family in metrics.PipelineCollector().collect()
        for sample in family.samples
        if sample.labels.get("tenant") == owner.tenant.slug and "pipe" in sample.labels
    }
