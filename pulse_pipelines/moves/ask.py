"""Requests for moves: without data files to rewrite a move is done at once, otherwise it is recorded."""

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.moves import evolve, record
from pulse_pipelines.moves.record import Move
from pulse_resources.process.faults import fail_point


def ask(tenant: Tenant, slug: str, schema_uri: str) -> Dataset | Move:
    """Move a dataset to a newer, compatible version of its schema, or record the move for a run.

    Returns:
        The dataset, if it now follows the version. A move, if a run has to rewrite data files; until then
        the dataset is unchanged.

    Raises:
        Conflict: the dataset already has an open move, or the version is earlier, or of another schema.
        UserError, Terminal, Transient: as `registry.carry_out`; nothing was changed.
    """
    record.none_under_way(tenant, registry.find_dataset(tenant, slug))
    try:
        return evolve.move_dataset(tenant, slug, schema_uri)
    except evolve.FilesToRewrite as rewrite:
        fail_point("move.asked")
        return record.plan(tenant, rewrite.dataset, schema_uri)
