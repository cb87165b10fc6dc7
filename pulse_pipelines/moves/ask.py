"""Asking for a move: what needs no data file to be written again is done at once, the rest is recorded."""

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.moves import record
from pulse_pipelines.moves.record import Move
from pulse_resources.faults import fail_point


def ask(tenant: Tenant, slug: str, schema_uri: str) -> Dataset | Move:
    """Move a dataset to a newer, compatible version of its schema, or have a run do it.

    Returns:
        The dataset: it follows the version by now. A move: a run is going to write data files again, and
        until it has, the dataset is as it was.

    Raises:
        Conflict: a move of the dataset is under way; or the version is an earlier one, or of another schema.
        UserError, Terminal, Transient: as `registry.carry_out`; nothing was changed.
    """
    record.none_under_way(tenant, registry.find_dataset(tenant, slug))
    try:
        return registry.move_dataset(tenant, slug, schema_uri)
    except registry.FilesToRewrite as found:
        fail_point("move.asked")
        return record.plan(tenant, found.dataset, schema_uri)
