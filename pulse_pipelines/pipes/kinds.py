"""Kinds: the module that knows how to read each kind of thing that a pipe may read."""

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol, cast

from pulse_pipelines.domain.pipe_sources import Feed, Files
from pulse_pipelines.domain.pipes import Definition, PostgresTable, Transform
from pulse_pipelines.domain.tenant import Tenant

MODULES = {
    PostgresTable: "pulse_pipelines.pipes.postgres.load",
    Files: "pulse_pipelines.pipes.files.load",
    Feed: "pulse_pipelines.pipes.feeds.load",
    Transform: "pulse_pipelines.pipes.transforms.load",
}
"""Imported when one is needed: they import what defines pipes, and clients of their sources."""


class Kind(Protocol):
    """What such a module has."""

    def schema(self, tenant: Tenant, said: Definition) -> dict[str, Any] | None:
        """The JSON Schema of the entities; None: nothing shows it. Raises what `registry.create` does."""

    def opened(self, pipe: Any, parallelism: int, *, full: bool) -> AbstractContextManager[Any]:
        """What a run reads, a `Wanted`, for as long as its tasks run; raises what `run` does."""


def of(said: Definition) -> Kind:
    """The module for what a pipe reads."""
    return cast(Kind, import_module(MODULES[type(said.other_end)]))


def computes(tenant: Tenant, said: Definition) -> str | None:
    """What runs of a transform compute, in a line; None: it is none. Raises what `Kind.schema` does."""
    if not isinstance(said.other_end, Transform):
        return None
    return str(import_module(MODULES[Transform]).computes(tenant, said))
