"""A dataset of entities, entities as they are sent, and the ten lines that say what becomes of them."""

import json
from collections.abc import Iterable
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.entities import event
from pulse_pipelines.entities import index_build, indexes
from pulse_pipelines.query import versions
from support.ingest import Owner

SLUG = "countries"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "people": {"type": "integer"},
        "area": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def make_entities(owner: Owner, slug: str = SLUG) -> Dataset:
    """Create a dataset of entities."""
    uri = registry.publish_schema(owner.tenant, slug, json.dumps(SCHEMA)).schema_uri
    return registry.create_dataset(owner.tenant, slug, uri, kind=DatasetKind.ENTITIES)


def entity(key: str, *, slug: str = SLUG, **properties: Any) -> bytes:
    """An entity as it is on the topic."""
    return json.dumps(event({"_id": key} | properties, slug, "2026-11-19T10:00:00Z")).encode()


def model(sent: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any] | None]]:
    """The log of what was sent: ids and contents, None where an entity is deleted."""
    log: list[tuple[str, dict[str, Any] | None]] = []
    heads: dict[str, Any] = {}
    for key, properties in sent:
        state = None if properties.get("_deleted") else properties
        if heads.get(key, "unknown") != state:
            log.append((key, state))
            heads[key] = state
    return log


def declare(owner: Owner, expression: str, slug: str = SLUG) -> None:
    """Declare an index, and build it."""
    index = indexes.declare(owner.tenant, slug, expression)
    index_build.build(owner.tenant, slug, index.index_id)


def model_of_subset(log: Iterable[dict[str, Any]], value: str) -> list[tuple[str, int, bool]]:
    """The log of a subset by name, from the whole log: ids, places, and whether the entity is gone."""
    changes, within = [], set()
    for version in log:
        key, matches = version["_id"], version.get("name") == value
        if matches or key in within:
            changes.append((key, version["_updated"], not matches))
            (within.add if matches else within.remove)(key)
    return changes


def versions_of(log: Iterable[dict[str, Any]]) -> list[tuple[str, int, bool]]:
    """Versions as `model_of_subset` has them."""
    return [(version["_id"], version["_updated"], version["_deleted"]) for version in log]


def pages(
    owner: Owner,
    since: str | None = None,
    limit: int = 1_000,
    slug: str = SLUG,
    subset: str | None = None,
) -> list[dict[str, Any]]:
    """All versions after a continuation, page by page."""
    changes = []
    while (page := versions.page(owner.tenant, slug, since, limit, False, subset)).following != since:
        changes += [json.loads(line) for line in page.lines.splitlines()]
        since = page.following
    return changes


def as_model(log: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any] | None]]:
    """Versions as readers get them, as the model has them."""
    return [
        (
            version["_id"],
            None if version["_deleted"] else {k: v for k, v in version.items() if not k.startswith("_")},
        )
        for version in log
    ]
