"""A tenant's own views: named SQL texts with all of their versions.

A view's metadata is a file beside those of tables, and is committed in the same way. The server never runs
the SQL of a view.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pyiceberg.catalog.rest import CreateViewRequest
from pyiceberg.schema import Schema

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import (
    catalog,
    metadata,
    namespaces,
    outline,
    parsing,
    paths,
    table_commits,
    updates,
)
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.lake.catalog_change import CatalogChange, Files, Written, commit_files
from pulse_pipelines.lake.errors import CommitFailed, IllegalArgument, Malformed
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.parsing import Document
from pulse_pipelines.lake.requests import Once
from pulse_pipelines.lake.table_commits import Name
from pulse_pipelines.tables.commit import Next, SwapLost
from pulse_resources.iceberg import table_metadata

_LAST = -1
_KEEP = "version.history.num-entries"
_DEFAULT_VERSIONS = 10
"""Versions to keep, if the view does not set a number."""


def load(tenant: Tenant, name: Name) -> Metadata:
    """Load the current state of a view. Raises NoSuchView."""
    return metadata.read(tenant, catalog.location(tenant, name.namespace, name.name, Kind.VIEW))


def create(tenant: Tenant, name: Name, body: Mapping[str, Any], once: Once) -> Metadata:
    """Create a view. Raises as `table_commits.create`."""
    once.check(tenant)
    table_commits.check_new(tenant, name, Kind.VIEW)
    with updates.malformed_refused():
        outline.check(body, outline.NEW_VIEW)
        request = CreateViewRequest.model_validate({"location": None} | dict(body))
        version = orjson.loads(request.view_version.model_dump_json()) | {"version-id": 1}
        schema = orjson.loads(request.view_schema.model_dump_json()) | {"schema-id": 0}
    version["schema-id"] = 0
    document = {
        "view-uuid": str(uuid.uuid4()),
        "format-version": 1,
        "location": paths.new_location(tenant),
        "schemas": [schema],
        "current-version-id": 1,
        "versions": [version],
        "version-log": [{"timestamp-ms": version["timestamp-ms"], "version-id": 1}],
        "properties": dict(request.properties),
    }
    _unique_dialects(version)
    _check(tenant, document)
    return table_commits.make(tenant, name, document, Kind.VIEW, once)


def change(tenant: Tenant, name: Name, body: Mapping[str, Any], once: Once) -> Metadata:
    """Apply a commit to a view.

    Raises:
        NoSuchView, NoSuchNamespace, ReadOnly: it does not exist, or is none of the tenant's own.
        CommitFailed: the view does not meet the requirements.
        Malformed: an update is invalid.
    """
    namespaces.place_of(tenant, name.namespace)
    once.check(tenant)
    view_updates, requirements = _objects(body, "updates"), _objects(body, "requirements")
    with updates.malformed_refused():
        outline.check({"updates": view_updates}, outline.COMMIT)
    with Written(tenant) as new:
        work = commit_files(_ViewCommit(tenant, once, [], name, view_updates, requirements, new))
        return new.hold(work.files[0])


@dataclass
class _ViewCommit(CatalogChange[Files]):
    """Applies a client's commit to a view."""

    name: Name
    updates: Sequence[Document]
    requirements: Sequence[Document]
    new_files: Written

    def stage(self, lost: SwapLost | None) -> Files:
        current = load(self.tenant, self.name)
        document = current.document()
        for requirement in self.requirements:
            if requirement.get("type") != "assert-view-uuid":
                raise Malformed(f"a view has no requirement {str(requirement.get('type'))[:100]}")
            if requirement.get("uuid") != document["view-uuid"]:
                raise CommitFailed("Requirement failed: view UUID does not match")
        following = applied(document, self.updates)
        _check(self.tenant, following)
        version = (table_metadata.version(current.at) or 0) + 1
        file = self.new_files.write(current.location, version, following)
        place = namespaces.place_of(self.tenant, self.name.namespace)
        return Files([Next((place, self.name.name), current.at, file.at)], [file])


def _objects(body: Mapping[str, Any], part: str) -> Sequence[Document]:
    objects = body.get(part) or []
    if not isinstance(objects, list) or not all(isinstance(value, dict) for value in objects):
        raise Malformed(f"{part} is a list of objects")
    return objects


def _check(tenant: Tenant, document: Document) -> None:
    with updates.malformed_refused():
        parsing.check_view(document)
    # Only the catalog writes files of a view, in the folder of the view.
    paths.check(tenant, document | {"properties": {}})


class _Added(dict[str, int]):
    """The ids of the schema and the version that a commit added last, and the view's versions.

    A commit may add thousands of versions to thousands: they are not searched for each of its updates.
    """

    def __init__(self, view: Document) -> None:
        super().__init__()
        self.by_id: dict[int, Document] = {}
        self.by_content: dict[bytes, int] = {}
        self.schema_ids = {schema["schema-id"] for schema in view["schemas"]}
        for version in view["versions"]:
            self.enter(version)

    def enter(self, version: Document) -> None:
        """Enter a version of the view."""
        number = version["version-id"]
        self.by_id[number] = version
        self.by_content.setdefault(_content(version), number)
        self.latest = max(number, getattr(self, "latest", number))


def applied(document: Document, view_updates: Sequence[Document]) -> Document:
    """The next metadata of a view. Raises Malformed: an update is invalid."""
    following = orjson.loads(orjson.dumps(document))
    with updates.malformed_refused():
        added = _Added(following)
        for update in view_updates:
            _ACTIONS[str(update.get("action"))](following, update, added)
    _forget(following)
    return following  # type: ignore[no-any-return]


def _add_schema(view: Document, update: Document, added: _Added) -> None:
    schema = Schema.model_validate(update["schema"])
    for present in view["schemas"]:
        if Schema.model_validate(present) == schema:
            added["schema"] = present["schema-id"]
            return
    number = max(view_schema["schema-id"] for view_schema in view["schemas"]) + 1
    view["schemas"].append(orjson.loads(schema.model_dump_json()) | {"schema-id": number})
    added["schema"] = number
    added.schema_ids.add(number)


def _add_version(view: Document, update: Document, added: _Added) -> None:
    version = dict(update["view-version"])
    if version.get("schema-id") == _LAST:
        version["schema-id"] = added["schema"]
    if version["schema-id"] not in added.schema_ids:
        raise ValueError(f"there is no schema {version['schema-id']}")
    _check_dialects(view, added.by_id[view["current-version-id"]], _unique_dialects(version))
    if (present := added.by_content.get(_content(version))) is not None:
        added["version"] = present
        return
    version["version-id"] = added.latest + 1
    view["versions"].append(version)
    added.enter(version)
    added["version"] = version["version-id"]


def _unique_dialects(version: Document) -> set[str]:
    """The dialects of a version, each of which must occur once. Raises IllegalArgument."""
    dialects: set[str] = set()
    for representation in version["representations"]:
        dialect = representation["dialect"].lower()
        if dialect in dialects:
            raise IllegalArgument(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        dialects.add(dialect)
    return dialects


def _check_dialects(view: Document, current: Document, dialects: set[str]) -> None:
    """Raises ValueError: the current version has a dialect that would be lost."""
    if view["properties"].get("replace.drop-dialect.allowed", "false").lower() == "true":
        return
    if lost := _unique_dialects(current) - dialects:
        raise ValueError(f"Cannot replace view due to loss of view dialects: {sorted(lost)}")


def _content(version: Document) -> bytes:
    """What distinguishes versions, apart from their ids and times."""
    parts = ("schema-id", "representations", "default-namespace", "default-catalog", "summary")
    return orjson.dumps([version.get(part) for part in parts], option=orjson.OPT_SORT_KEYS)


def _set_version(view: Document, update: Document, added: _Added) -> None:
    number = update["view-version-id"]
    number = added["version"] if number == _LAST else number
    if number == view["current-version-id"]:
        return
    if (version := added.by_id.get(number)) is None:
        raise ValueError(f"Cannot set current version to unknown version: {number}")
    view["current-version-id"] = number
    when = version["timestamp-ms"] if added.get("version") == number else int(time.time() * 1000)
    view["version-log"].append({"timestamp-ms": when, "version-id": number})


def _forget(view: Document) -> None:
    """Remove versions beyond the number to keep; the current and the newest version stay."""
    keep = max(1, int(view["properties"].get(_KEEP, _DEFAULT_VERSIONS)))
    numbers = sorted((version["version-id"] for version in view["versions"]), reverse=True)
    remaining = {view["current-version-id"], *numbers[:keep]}
    while len(remaining) > keep and len(remaining) > 1:
        remaining.discard(min(remaining - {view["current-version-id"]}))
    view["versions"] = [version for version in view["versions"] if version["version-id"] in remaining]
    log = view["version-log"]
    first = max((n + 1 for n, entry in enumerate(log) if entry["version-id"] not in remaining), default=0)
    view["version-log"] = log[first:]


def _set_properties(view: Document, update: Document, added: _Added) -> None:
    view["properties"] |= {str(name): str(value) for name, value in update["updates"].items()}


def _remove_properties(view: Document, update: Document, added: _Added) -> None:
    for name in update["removals"]:
        view["properties"].pop(name, None)


def _assign_uuid(view: Document, update: Document, added: _Added) -> None:
    if update["uuid"] != view["view-uuid"]:
        raise ValueError("Cannot reassign uuid")


def _upgrade(view: Document, update: Document, added: _Added) -> None:
    if update["format-version"] != 1:
        raise ValueError(f"Unsupported view format version: {update['format-version']}")


def _set_location(view: Document, update: Document, added: _Added) -> None:
    """The catalog sets the locations of views."""


_ACTIONS: Mapping[str, Callable[[Document, Document, _Added], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-view-version": _add_version,
    "set-current-view-version": _set_version,
}
