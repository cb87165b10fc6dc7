"""Runs of pipes, and all that follows from them."""

from psycopg.types.json import Jsonb

from chaos.surroundings import superuser
from pulse_api.http import pipeline_metrics
from pulse_pipelines import registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.ingest import plan, sync_deletions
from pulse_pipelines.pipes.run import Sent, run
from support.entities import make_entities
from support.here import ingest_here as ingest
from support.ingest import Owner
from support.lake import spark


def bring(owner: Owner, name: str = "planes", *, full: bool = False) -> Sent:
    """Run a pipe until everything that it sent has settled, deletions too."""
    sent = run(spark(), owner.tenant, name, 2, full=full)
    settle(owner)
    return sent


def settle(owner: Owner) -> None:
    """Land what waits, and send deletions, until there are none."""
    while sync_deletions.send_of(owner.tenant) or plan.ingest_status([owner.tenant.tenant_id]).waiting:
        ingest(owner)


def exposed(owner: Owner) -> dict[tuple[str, str], float]:
    """What is measured of a tenant's pipes now, by metric and outcome."""
    return {
        (sample.name, sample.labels.get("outcome", "")): sample.value
        for family in pipeline_metrics.PipelineCollector().collect()
        for sample in family.samples
        if sample.labels.get("tenant") == owner.tenant.slug and "pipe" in sample.labels
    }


def make_pipe(owner: Owner, name: str) -> None:
    """A pipe, as a row alone: its source is nowhere."""
    if name not in {dataset.slug for dataset in registry.list_datasets(owner.tenant)}:
        make_entities(owner, name)
    declared = definition({"pipe": name, "source": "shop", "table": name, "dataset": name})
    dataset = registry.find_dataset(owner.tenant, name)
    with superuser() as connection:
        values = [owner.tenant.tenant_id, name, dataset.dataset_id, Jsonb(declared.document)]
        insert = "INSERT INTO pipes (tenant_id, pipe, dataset_id, definition) VALUES (%s, %s, %s, %s)"
        connection.execute(insert, values)
