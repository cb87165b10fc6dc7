"""Batches of a dataset's log, for a sink: bounded in versions and, nearly, in bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.domain.requests import MAX_VERSIONS
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.query import versions

BYTES = 8 * 1024 * 1024
"""Intended bytes of a batch as JSON."""
FIRST = 1_000
"""Versions of the first batch, before their size is known."""


@dataclass(frozen=True)
class Entity:
    """The newest version of an entity in a batch."""

    id: str
    is_deleted: bool
    content: Mapping[str, Any]
    """Its properties."""
    updated: int


@dataclass(frozen=True)
class Batch:
    """Versions that follow each other in a log."""

    entities: list[Entity]
    """In the order of the log."""
    versions: int
    until: int
    """Place in the log of the end."""


class Reader:
    """Reads the log that a pipe reads, batch by batch."""

    def __init__(self, pipe: Pipe, generation: int) -> None:
        self._pipe, self._generation, self._limit = pipe, generation, FIRST

    def after(self, updated: int, until: int, most_bytes: int | None = None) -> Batch:
        """The batch after a place in the log; it may be empty, and may end before the log.

        Args:
            until: place in the log beyond which nothing is read.
            most_bytes: as JSON; the version with which it would have more is left to the next batch, unless
                it is the first.

        Raises:
            Conflict: the log was rebuilt meanwhile.
            Transient: it cannot be read now.
        """
        if updated >= until:
            return Batch([], 0, updated)
        definition = self._pipe.definition
        limit = min(self._limit, until - updated)
        since = f"{self._generation}-{updated}"
        reader = f"pipe {self._pipe.name}"
        read = versions.after(
            self._pipe.tenant, definition.dataset, since, limit, definition.sink.subset, reader
        )
        accepted: list[dict[str, Any]] = []
        last, size = min(read.last, until), 0
        for version in read.versions:
            if version["_updated"] > until:
                break
            size += len(json_values.written(version))
            if most_bytes is not None and size > most_bytes and accepted:
                last = accepted[-1]["_updated"]
                break
            accepted.append(version)
        if size and accepted:
            self._limit = max(1, min(MAX_VERSIONS, 4 * limit, len(accepted) * BYTES // size))
        newest = {version[ID]: version for version in accepted}
        ordered = sorted(newest.values(), key=lambda version: int(version["_updated"]))
        return Batch([_entity(version) for version in ordered], len(accepted), last)


def _entity(version: Mapping[str, Any]) -> Entity:
    content = {name: value for name, value in version.items() if not name.startswith("_")}
    return Entity(version[ID], version[DELETED], content, version["_updated"])
