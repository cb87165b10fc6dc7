"""Parts of the definitions: assets that the code server shows without keeping them built.

Dagster builds all definitions on each reload, and a snapshot of them for each of its services. With an asset
and a dozen checks per slug that took 30 ms of a slow core per slug and reload. A part is built when it is
new or has changed; what is kept of it is the text that the services load.
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from hashlib import blake2b
from typing import Any, Protocol

from dagster import AssetCheckKey, AssetKey, DagsterError, Definitions, RepositoryDefinition
from dagster._api import snapshot_repository
from dagster._check import CheckError
from dagster._core.remote_representation.external_data import (
    RepositorySnap,
    asset_check_node_snaps_from_repo,
    asset_node_snaps_from_repo,
)
from dagster._record import copy
from dagster._serdes import deserialize_value, serialize_value

from pulse_pipelines.runtime.parts_file import Part, PartsFile, code_version, packed, unpacked

TOGETHER = 100
"""Parts that are built at a time: it bounds the memory of what is built."""
SELECTIONS = 16
"""Selections of assets whose definitions are kept: a launch asks for the same several times."""
_NODES, _CHECKS = '"external_asset_graph_data": []', '"external_asset_checks": []'
_NODE, _CHECK = '{"__class__": "ExternalAssetNode"', '{"__class__": "ExternalAssetCheck"'


_log = logging.getLogger("dagster.code_server")
_check_keys: list[str] = []
"""Keys of the checks of all parts of this process."""


class Parts(Protocol):
    """What a module of definitions has, by the name `PARTS`, if some of its assets are in parts."""

    def versions(self) -> Mapping[str, str]:
        """Version of each part, by name: the part is the same while this is."""

    def build(self, names: Collection[str]) -> Definitions:
        """Definitions of these parts alone; of one that is gone nothing."""

    def build_assets(self, keys: Set[AssetKey]) -> Definitions:
        """Definitions that a run of these assets needs, of parts or not."""

    def part_of(self, key: AssetKey) -> str | None:
        """Name of the part that an asset is of, if it is of one."""

    def model_of(self, key: AssetKey) -> str:
        """Name of the op, among definitions without parts, whose config and resources are the asset's."""


class PartedSnapshot:
    """The snapshot of the code location that Dagster's services load, and definitions of what they select."""

    def __init__(self, parts: Parts, file: PartsFile) -> None:
        """Args:
        file: where parts are kept; what is in it is shown from the start.
        """
        self._parts, self._file = parts, file
        self._code = code_version()
        self._kept = file.read()
        self._rest, self._kept_rest = "", Part("", b"", b"", "[]")
        self._selected: dict[frozenset[AssetKey], RepositoryDefinition] = {}

    def refresh(self, rest: RepositoryDefinition, *, at_once: bool = False) -> bool:
        """Build the parts that are new or have changed.

        Args:
            rest: what is in no part; ops that parts are modelled on are in it, too.
            at_once: leave those that have changed as they are.

        Returns:
            Whether all parts are current.
        """
        versions = {name: f"{self._code} {version}" for name, version in self._parts.versions().items()}
        changed = [
            name for name in versions if name not in self._kept or self._kept[name].version != versions[name]
        ]
        due = [name for name in changed if not (at_once and name in self._kept)]
        kept = {name: part for name, part in self._kept.items() if name in versions}
        for start in range(0, len(due), TOGETHER):
            built = self._buildable({name: versions[name] for name in due[start : start + TOGETHER]})
            self._file.write(built)  # so that a start that is given up was not for nothing
            kept |= built
        self._file.write({}, self._kept.keys() - versions)
        self._kept = {name: kept[name] for name in versions if name in kept}
        self._rest, self._selected = self._without_parts(rest), {}
        _check_keys[:] = [part.check_keys for part in self._kept.values()]
        return len(due) == len(changed)

    def _buildable(self, versions: Mapping[str, str]) -> dict[str, Part]:
        """Those of the parts that Dagster takes: one that it refuses keeps no other from being shown."""
        try:
            return self._built(versions)
        except (DagsterError, CheckError):
            if len(versions) > 1:
                built = [self._buildable({name: version}) for name, version in versions.items()]
                return {name: part for parts in built for name, part in parts.items()}
            _log.exception("The assets of %s cannot be shown", *versions)
            return {}

    def _built(self, versions: Mapping[str, str]) -> dict[str, Part]:
        built = self._parts.build(list(versions)).get_repository_def()
        nodes: dict[str | None, list[Any]] = {name: [] for name in versions}
        checks: dict[str | None, list[Any]] = {name: [] for name in versions}
        for node in asset_node_snaps_from_repo(built):
            model = self._parts.model_of(node.asset_key)
            nodes[self._parts.part_of(node.asset_key)].append(copy(node, node_definition_name=model))
        for check in asset_check_node_snaps_from_repo(built):
            checks[self._parts.part_of(check.asset_key)].append(check)
        return {
            name: Part(
                version,
                _in_one_line(nodes[name]),
                _in_one_line(checks[name]),
                json.dumps([(check.asset_key.path, check.name) for check in checks[name]]),
            )
            for name, version in versions.items()
        }

    def _without_parts(self, rest: RepositoryDefinition) -> str:
        """Snapshot of what is in no part, serialized, whose lists of assets and checks each begin a line."""

        def others(keys: Iterable[AssetKey]) -> list[AssetKey]:
            return [key for key in keys if self._parts.part_of(key) is None]

        snapshot = RepositorySnap.from_def(rest, defer_snapshots=True)
        resources = [copy(r, asset_keys_using=others(r.asset_keys_using)) for r in snapshot.resources or ()]
        known = set(others(node.asset_key for node in snapshot.asset_nodes))
        nodes = [node for node in snapshot.asset_nodes if node.asset_key in known]
        checks = [check for check in snapshot.asset_check_nodes or () if check.asset_key in known]
        self._kept_rest = Part("", _in_one_line(nodes), _in_one_line(checks), "[]")
        return serialize_value(copy(snapshot, asset_nodes=[], asset_check_nodes=[], resources=resources))

    def text(self) -> str:
        """The snapshot, serialized: JSON in which a line has the assets, or the checks, of one part."""
        parts = [self._kept_rest, *self._kept.values()]
        nodes = ",\n".join(filter(None, (unpacked(part.nodes) for part in parts)))
        checks = ",\n".join(filter(None, (unpacked(part.checks) for part in parts)))
        return self._rest.replace(_NODES, f"{_NODES[:-1]}\n{nodes}\n]").replace(
            _CHECKS, f"{_CHECKS[:-1]}\n{checks}\n]"
        )

    def select(self, keys: Set[AssetKey]) -> RepositoryDefinition | None:
        """Definitions for a run of some assets; None if none of them is in a part."""
        if all(self._parts.part_of(key) is None for key in keys):
            return None
        selected = frozenset(keys)
        if selected not in self._selected:
            if len(self._selected) >= SELECTIONS:
                self._selected.clear()
            self._selected[selected] = self._parts.build_assets(selected).get_repository_def()
        return self._selected[selected]


def _in_one_line(snapshots: Sequence[Any]) -> bytes:
    return packed(serialize_value(snapshots)[1:-1])


def shown_check_keys(built: RepositoryDefinition) -> list[AssetCheckKey]:
    """Keys of all checks that the services show.

    Args:
        built: the definitions of this process, which in the code server are without parts.
    """
    in_parts = [
        AssetCheckKey(AssetKey(path), name) for keys in _check_keys for path, name in json.loads(keys)
    ]
    return [*built.asset_graph.asset_check_keys, *in_parts]


class KeptParts:
    """Parts that one of Dagster's services has loaded: it reads again only those that have changed."""

    def __init__(self) -> None:
        self._kept: dict[bytes, list[Any]] = {}

    def deserialize(self, text: str, as_type: Any) -> Any:
        """Dagster's `deserialize_value`, which reads lines that it has read before no second time."""
        if "\n" not in text:  # JSON that was not made here has none
            return deserialize_value(text, as_type)
        rest: list[str] = []
        nodes: list[Any] = []
        checks: list[Any] = []
        kept: dict[bytes, list[Any]] = {}
        for line in text.split("\n"):
            of = nodes if line.startswith(_NODE) else checks if line.startswith(_CHECK) else None
            if of is None:
                rest.append(line)
                continue
            line = line.removesuffix(",")
            key = blake2b(line.encode(), digest_size=16).digest()
            kept[key] = self._kept.get(key) or deserialize_value(f"[{line}]", list)
            of.extend(kept[key])
        self._kept = kept
        return copy(deserialize_value("".join(rest), as_type), asset_nodes=nodes, asset_check_nodes=checks)


def keep_loaded_parts() -> None:
    """Have this process, a service of Dagster's, keep the parts of snapshots that it has loaded."""
    setattr(snapshot_repository, "deserialize_value", KeptParts().deserialize)  # noqa: B010
