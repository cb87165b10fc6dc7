"""Sources: the module that reads each kind of source."""

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


class SourceKind(Protocol):
    """The functions of such a module."""

    def schema(self, tenant: Tenant, definition: Definition) -> dict[str, Any] | None:
        """The JSON Schema of the entities, None if it cannot be derived; raises as `creation.create`."""

    def opened(self, pipe: Any, parallelism: int, *, full: bool) -> AbstractContextManager[Any]:
        """The plan of what a run reads, valid while its tasks run; raises what `run` raises."""


def module_of(definition: Definition) -> SourceKind:
    """The module that reads the source of a pipe."""
    return cast(SourceKind, import_module(MODULES[type(definition.other_end)]))


def computes(tenant: Tenant, definition: Definition) -> str | None:
    """A line about what runs of a transform compute; None: no transform. Raises as `SourceKind.schema`."""
    if not isinstance(definition.other_end, Transform):
        return None
    return str(import_module(MODULES[Transform]).computes(tenant, definition))
