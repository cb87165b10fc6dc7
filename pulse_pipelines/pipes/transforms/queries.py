"""Queries of transforms: checked against the grammar, and the datasets that they read."""

from collections.abc import Sequence

from pulse_pipelines.curated.query_check import Query, check_query
from pulse_pipelines.domain.pipes import Definition, Transform
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes.registry import Pipe, list_all_pipes, list_pipes
from pulse_resources.errors import Conflict, UserError

MOST = 16
"""Sources of a transform."""


def query_of(definition: Definition) -> Query:
    """The checked query of a transform.

    Raises:
        UserError: it is not one SELECT over datasets, or has what the grammar of rollups does not allow.
    """
    assert isinstance(definition.other_end, Transform)  # noqa: S101 - by `sources`
    try:
        query = check_query(definition.other_end.transform, "transform")
    except RecursionError:
        raise UserError("the transform is nested too deeply", pipe=definition.pipe) from None
    if not 1 <= len(query.tables) <= MOST:
        raise UserError(
            f"the transform reads {len(query.tables)} datasets: it may read 1 to {MOST}", pipe=definition.pipe
        )
    return query


def refuse_cycles(definition: Definition, definitions: Sequence[Definition]) -> None:
    """Check that no dataset becomes, through transforms, a source of itself.

    Args:
        definitions: the tenant's pipes.

    Raises:
        Conflict: one would.
    """
    read_for = {
        other.dataset: query_of(other).tables
        for other in definitions
        if isinstance(other.other_end, Transform)
    }
    read_for[definition.dataset] = query_of(definition).tables
    visited: set[str] = set()
    waiting: list[tuple[str, ...]] = [(definition.dataset,)]
    while waiting:
        way = waiting.pop()
        for source in read_for.get(way[-1], ()):
            if source == definition.dataset:
                raise Conflict(
                    f"the dataset would be a source of itself: {' reads '.join((*way, source))}",
                    fix="Write the result into another dataset",
                    pipe=definition.pipe,
                )
            if source not in visited:
                visited.add(source)
                waiting.append((*way, source))


def sources_by_name() -> dict[str, set[str]]:
    """Slugs of the datasets that transforms read, by the names of the pipes of all tenants."""
    slugs_by_name: dict[str, set[str]] = {}
    for pipe in list_all_pipes():
        slugs_by_name.setdefault(pipe.name, set()).update(_read_by(pipe))
    return {name: slugs for name, slugs in slugs_by_name.items() if slugs}


def readers(tenant: Tenant, slug: str) -> list[Pipe]:
    """The tenant's transforms that read a dataset."""
    return [pipe for pipe in list_pipes(tenant) if slug in _read_by(pipe)]


def _read_by(pipe: Pipe) -> tuple[str, ...]:
    """Slugs of the datasets that a pipe reads, if it is a transform."""
    if not isinstance(pipe.definition.other_end, Transform):
        return ()
    try:
        return query_of(pipe.definition).tables
    except UserError:  # no longer allowed: its run reports it
        return ()
