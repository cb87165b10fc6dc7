"""Locations of a tenant's own tables, and the checks that paths in client metadata stay within them.

    s3://<bucket>/iceberg/pulse_<tenant id>/_own/<32 hex digits>/     one table or view: data, metadata

No dataset's slug begins with `_`. The catalog chooses the folder. Every other path that a client names has
to be below the folder of its table, in plain characters: paths with `..`, `%` or `//` are refused, so nothing
has to be decoded, and no two readers can decode a path differently.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import metadata
from pulse_pipelines.lake.errors import Malformed
from pulse_resources.errors import UserError
from pulse_resources.store_keys import vended

_NAME = re.compile(r"[0-9a-f]{32}")
_LONGEST = 900
_LISTS = (
    ("snapshots", "manifest-list"),
    ("statistics", "statistics-path"),
    ("partition-statistics", "statistics-path"),
    ("metadata-log", "metadata-file"),
)
"""Keys of a table's metadata that hold locations of files."""


def tenant_folder(tenant: Tenant) -> str:
    """The folder of all of the tenant's own tables."""
    return f"{metadata.folder(tenant)}/_own"


def new_location(tenant: Tenant) -> str:
    """A new, unique folder for a table."""
    return f"{tenant_folder(tenant)}/{uuid.uuid4().hex}"


def defaults(location: str) -> dict[str, str]:
    """Properties of a new table that keep its writers in its folder, whatever location they ask for."""
    return {"write.data.path": f"{location}/data", "write.metadata.path": f"{location}/metadata"}


def is_location(tenant: Tenant, location: str) -> bool:
    """Whether this is the folder of one of the tenant's own tables."""
    folder, _, name = location.rpartition("/")
    return folder == tenant_folder(tenant) and _NAME.fullmatch(name) is not None


def below(location: str, path: object) -> bool:
    """Whether a path is plain, and below a table's folder."""
    if not isinstance(path, str) or len(path) > _LONGEST:
        return False
    try:
        inside = vended.prefix_of(path)
    except UserError:
        return False
    folder = vended.prefix_of(location)
    return inside.startswith(folder) and inside != folder


def check_metadata_file(tenant: Tenant, path: str) -> None:
    """Raise Malformed unless this is a metadata file of one of the tenant's own tables."""
    folder, _, name = path.rpartition("/metadata/")
    if not (is_location(tenant, folder) and "/" not in name and below(folder, path)):
        raise _outside_folder("metadata-location")


def check(tenant: Tenant, document: Mapping[str, Any]) -> None:
    """Raise Malformed if the metadata of a table or view names a location outside its own folder."""
    location = str(document.get("location"))
    if not is_location(tenant, location):
        raise _outside_folder("location")
    for member, path in _named(document):
        if not below(location, path):
            raise _outside_folder(member)


def check_properties(properties: Mapping[str, Any], location: str) -> None:
    """Raise Malformed if a property directs writers outside the folder."""
    for name, path in _paths(properties):
        if not below(location, path):
            raise _outside_folder(name)


def _named(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for part, name in _LISTS:
        for entry in document.get(part) or ():
            yield name, entry.get(name)
    for snapshot in document.get("snapshots") or ():
        for manifest in snapshot.get("manifests") or ():
            yield "manifests", manifest
    yield from _paths(document.get("properties") or {})


def _paths(properties: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """`write.data.path`, `write.metadata.path` and every other property with such a name."""
    for name, value in properties.items():
        if name.startswith("write.") and name.endswith(".path"):
            yield name, value


def _outside_folder(member: str) -> Malformed:
    return Malformed(f"{member[:100]} must be below the folder that the catalog gave the table")
