"""Sent events: whether all events sent before a moment are settled, and which did not land."""

from collections.abc import Collection, Mapping

from pulse_pipelines import registry
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.trace import ledger, topic
from pulse_resources import postgres

Ids = Mapping[str | None, Collection[str]]
"""Event ids by the dataset that they name."""


def marks(tenant: Tenant) -> dict[int, int]:
    """Current end of each partition of the tenant's topic: every accepted event lies before it.

    Raises:
        Transient: the broker does not answer.
    """
    return topic.ends(tenant, ledger.positions(tenant))


def unsettled(tenant: Tenant, marks: Mapping[int, int]) -> int:
    """Count unsettled events before the marks."""
    settled = {number: position.settled for number, position in ledger.positions(tenant).items()}
    return sum(max(0, end - settled.get(partition, 0)) for partition, end in marks.items())


def not_landed(tenant: Tenant, ids: Ids) -> dict[str | None, list[str]]:
    """Ids without a row, by dataset, in the order given."""
    pending = {slug: set(of_dataset) for slug, of_dataset in ids.items()}
    for dataset in registry.list_datasets(tenant):
        if pending_ids := pending.get(dataset.slug):
            with postgres.tenant_transaction(
                "pulse_pipeline", tenant.tenant_id, one_snapshot=True
            ) as connection:
                pending_ids -= claim_runs.claimed_ids(connection, dataset, pending_ids)
    return {slug: sorted(of_dataset) for slug, of_dataset in pending.items() if of_dataset}
