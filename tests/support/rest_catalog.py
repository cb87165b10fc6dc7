"""Requests that engines make of the REST catalog, by hand."""

import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
VIEW = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1,
    "summary": {},
    "default-namespace": ["own"],
    "representations": [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark"}],
}
CREATION: tuple[dict[str, Any], ...] = (
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": SCHEMA | {"schema-id": 0}, "last-column-id": 1},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
    {"action": "set-default-sort-order", "sort-order-id": -1},
)
"""Updates of a commit that creates a table, apart from its place and properties."""
OWN = "/v1/namespaces/own"


@dataclass(frozen=True)
class Lake:
    """A client that has the namespace `own`, in which it makes what it needs."""

    client: httpx.Client

    def make(self, name: str | None = None, **more: Any) -> "Made":
        """An empty table."""
        name = name or f"t{uuid.uuid4().hex[:8]}"
        body = {"name": name, "schema": SCHEMA} | {k.replace("_", "-"): v for k, v in more.items()}
        answer = self.client.post(f"{OWN}/tables", json=body)
        assert answer.status_code == 200, answer.text
        return Made(name, answer.json())

    def commit(self, name: str, *updates: dict[str, Any], requirements: Any = ()) -> httpx.Response:
        body = {"updates": list(updates), "requirements": list(requirements)}
        return self.client.post(f"{OWN}/tables/{quote(name)}", json=body)

    def load(self, name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = self.client.get(f"{OWN}/tables/{quote(name)}").json()
        return loaded


@dataclass(frozen=True)
class Made:
    name: str
    answer: dict[str, Any]

    @property
    def location(self) -> str:
        return str(self.answer["metadata"]["location"])

    @property
    def at(self) -> str:
        return str(self.answer["metadata-location"])

    @property
    def uuid(self) -> dict[str, Any]:
        return {"type": "assert-table-uuid", "uuid": self.answer["metadata"]["table-uuid"]}


def snapshot(manifest_list: str, number: int = 1) -> dict[str, Any]:
    """The update that adds a snapshot."""
    return {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 2_000_000_000_000,
            "manifest-list": manifest_list,
            "summary": {"operation": "append"},
            "schema-id": 0,
        },
    }


def properties(**values: str) -> dict[str, Any]:
    """The update that sets properties."""
    return {"action": "set-properties", "updates": values}


STATISTICS = ("statistics", "partition-statistics")


def of_statistics(path: str, kind: str = "statistics", number: int = 1) -> dict[str, Any]:
    """The update that sets statistics of a snapshot."""
    entry = {
        "snapshot-id": number,
        "statistics-path": path,
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    return {"action": f"set-{kind}", kind: entry}
