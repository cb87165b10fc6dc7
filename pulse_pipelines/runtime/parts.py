"""Parts of the definitions: assets that the code server shows without keeping them built.

Dagster builds all definitions on each reload, and a snapshot of them for each of its services. With an asset
and a dozen checks per slug that took 30 ms of a slow core per slug and reload. A part is built when it is
new or has changed; what is kept of it is the text that the services load.
"""

import gc
import logging
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetSelection,
    AssetSpec,
    DagsterError,
    Definitions,
    RepositoryDefinition,
)
from dagster._api import snapshot_repository
from dagster._check import CheckError
from dagster._core.definitions.assets.definition.assets_definition import unique_id_from_asset_and_check_keys
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

_log = logging.getLogger("dagster.code_server")
_shown: "list[PartedSnapshot]" = []
"""The parts of this process that were refreshed last."""


COLLECT_AFTER = 200_000
"""Objects made between two collections of garbage; Python's 700 suit processes that keep little."""


@dataclass(frozen=True)
class Likeness:
    """The differences of a part from others of its form, except for its name."""

    form: Hashable
    spec: AssetSpec
    """Spec of the part's main asset. The other assets are in the same group."""


class Parts(Protocol):
    """What a module of definitions has, by the name `PARTS`, if some of its assets are in parts."""

    def versions(self) -> Mapping[str, str]:
        """Version of each part, by name: the part is the same while this is."""

    def build(self, names: Collection[str]) -> Definitions:
        """Definitions of these parts alone; of one that is gone nothing."""

    def likenesses(self, names: Collection[str]) -> Mapping[str, Likeness]:
        """The parts, among these, that are like others; all others are built separately."""

    def build_model(self, form: Any, name: str) -> Definitions:
        """Definitions of a part of a form by a name that no part has, which stands wherever the name does."""

    def build_assets(self, keys: Set[AssetKey]) -> Definitions:
        """Definitions that a run of these assets needs, of parts or not."""

    def assets_by_sensor(self) -> Mapping[str, AssetSelection]:
        """By a sensor's name: the assets that it updates through a job that has none of them.

        Their pages show the sensor as what automates them.
        """

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
        self._built_parts = file.read()
        self._rest: tuple[str, ...] = ()
        self._selected: dict[frozenset[AssetKey], RepositoryDefinition] = {}

    def refresh(self, definition: RepositoryDefinition, *, at_once: bool = False) -> bool:
        """Build the parts that are new or have changed.

        Args:
            definition: what is in no part; ops that parts are modelled on are in it, too.
            at_once: leave those that have changed as they are.

        Returns:
            Whether all parts are current.
        """
        versions = {name: f"{self._code} {version}" for name, version in self._parts.versions().items()}
        changed = [
            name
            for name in versions
            if name not in self._built_parts or self._built_parts[name].version != versions[name]
        ]
        due = [name for name in changed if not (at_once and name in self._built_parts)]
        current = {name: part for name, part in self._built_parts.items() if name in versions}
        models: dict[Hashable, _Model] = {}
        for start in range(0, len(due), TOGETHER):
            built = self._buildable({name: versions[name] for name in due[start : start + TOGETHER]}, models)
            self._file.write(built)  # so that a start that is given up was not for nothing
            current |= built
        self._file.write({}, self._built_parts.keys() - versions)
        self._built_parts = {name: current[name] for name in versions if name in current}
        self._rest, self._selected = self._without_parts(definition), {}
        _shown[:] = [self]
        return len(due) == len(changed)

    def _buildable(self, versions: Mapping[str, str], models: "dict[Hashable, _Model]") -> dict[str, Part]:
        """Those of the parts that Dagster takes: one that it refuses keeps no other from being shown."""
        try:
            return self._built(versions, models)
        except (DagsterError, CheckError):
            if len(versions) > 1:
                built = [self._buildable({name: version}, models) for name, version in versions.items()]
                return {name: part for parts in built for name, part in parts.items()}
            _log.exception("The assets of %s cannot be shown", *versions)
            return {}

    def _built(self, versions: Mapping[str, str], models: "dict[Hashable, _Model]") -> dict[str, Part]:
        alike = self._parts.likenesses(list(versions))
        texts: dict[str, str] = {}
        for name, likeness in alike.items():
            model = models.get(likeness.form) or _Model(self._parts, likeness.form)
            models[likeness.form] = model
            texts[name] = model.text_of(name, likeness.spec)
        if unlike := versions.keys() - alike:
            built = self._parts.build(sorted(unlike)).get_repository_def()
            nodes, checks = _snapshots(self._parts, built)
            texts |= {name: serialize_value([nodes[name], checks[name]]) for name in unlike}
        return {name: Part(version, packed(texts[name])) for name, version in versions.items()}

    def _without_parts(self, definition: RepositoryDefinition) -> tuple[str, str]:
        """Lines of what is in no part: the snapshot without assets and checks, and these."""

        def unparted(keys: Iterable[AssetKey]) -> list[AssetKey]:
            return [key for key in keys if self._parts.part_of(key) is None]

        snapshot = RepositorySnap.from_def(definition, defer_snapshots=True)
        resources = [copy(r, asset_keys_using=unparted(r.asset_keys_using)) for r in snapshot.resources or ()]
        other_keys = set(unparted(node.asset_key for node in snapshot.asset_nodes))
        nodes = [node for node in snapshot.asset_nodes if node.asset_key in other_keys]
        checks = [check for check in snapshot.asset_check_nodes or () if check.asset_key in other_keys]
        updated = self._parts.assets_by_sensor()
        sensors = [copy(sensor, asset_selection=updated.get(sensor.name)) for sensor in snapshot.sensors]
        without = copy(snapshot, asset_nodes=[], asset_check_nodes=[], resources=resources, sensors=sensors)
        return serialize_value(without), packed(serialize_value([nodes, checks]))

    def text(self) -> str:
        """The snapshot for `KeptParts`: JSON in a line, and a line for each part."""
        return "\n".join((*self._rest, *(part.packed for part in self._built_parts.values())))

    def shows(self, key: AssetCheckKey) -> bool:
        """Whether a check is among those of the parts."""
        part = self._built_parts.get(self._parts.part_of(key.asset_key) or "")
        return part is not None and any(
            (check.asset_key, check.name) == (key.asset_key, key.name) for check in _read(part.packed)[1]
        )

    def select(self, keys: Set[AssetKey]) -> RepositoryDefinition:
        """Definitions for a run of some assets, which may be in a part or not."""
        selected = frozenset(keys)
        if selected not in self._selected:
            if len(self._selected) >= SELECTIONS:
                self._selected.clear()
            self._selected[selected] = self._parts.build_assets(selected).get_repository_def()
        return self._selected[selected]


class _Model:
    """Text of the parts of a form: to build one by itself takes Dagster a hundredth of a second."""

    def __init__(self, parts: Parts, form: Hashable) -> None:
        # A random id stands for a part's name, its group, and ids of sets of assets and checks.
        self._name, self._group = uuid4().hex, uuid4().hex
        built = parts.build_model(form, self._name).get_repository_def()
        keys = {d.unique_id: [*d.keys, *d.check_keys] for d in built.asset_graph.assets_defs}
        self._sets = {uuid4().hex: [str(key) for key in of] for of in keys.values()}
        placeholders = dict(zip(keys, self._sets, strict=True))

        def general(snapshot: Any, **fields: str) -> Any:
            named = snapshot.execution_set_identifier
            return (
                copy(snapshot, execution_set_identifier=placeholders[named], **fields) if named else snapshot
            )

        nodes, checks = _snapshots(parts, built)
        self._nodes = {
            node.asset_key: copy(general(node), group_name=self._group) for node in nodes[self._name]
        }
        self._texts = {key: serialize_value(node) for key, node in self._nodes.items()}
        self._checks = serialize_value([general(check) for check in checks[self._name]])

    def text_of(self, name: str, spec: AssetSpec) -> str:
        """Text of the part by this name."""
        key = AssetKey([self._name if member == name else member for member in spec.key.path])
        main_node = copy(
            self._nodes[key], description=spec.description, metadata=spec.metadata, tags=spec.tags
        )
        nodes = ", ".join((self._texts | {key: serialize_value(main_node)}).values())
        text = f"[[{nodes}], {self._checks}]"
        for placeholder, keys in self._sets.items():
            renamed = [key.replace(self._name, name) for key in keys]
            text = text.replace(placeholder, unique_id_from_asset_and_check_keys(renamed))  # type: ignore[arg-type]
        return text.replace(self._group, spec.group_name or "").replace(self._name, name)


def _snapshots(
    parts: Parts, built: RepositoryDefinition
) -> tuple[Mapping[str | None, list[Any]], Mapping[str | None, list[Any]]]:
    """Snapshots of assets, and of checks, by part."""
    nodes, checks = defaultdict[str | None, list[Any]](list), defaultdict[str | None, list[Any]](list)
    for node in asset_node_snaps_from_repo(built):
        model = parts.model_of(node.asset_key)
        nodes[parts.part_of(node.asset_key)].append(copy(node, node_definition_name=model))
    for check in asset_check_node_snaps_from_repo(built):
        checks[parts.part_of(check.asset_key)].append(check)
    return nodes, checks


def _read(line: str) -> list[list[Any]]:
    """Snapshots of a part's assets, and of its checks."""
    return deserialize_value(unpacked(line), list)


def shows_check(built: RepositoryDefinition, key: AssetCheckKey) -> bool:
    """Whether the services show a check.

    Args:
        built: the definitions of this process, which in the code server are without parts.
    """
    return key in built.asset_graph.asset_check_keys or any(snapshot.shows(key) for snapshot in _shown)


class KeptParts:
    """Parts that one of Dagster's services has loaded: it reads again only those that have changed."""

    def __init__(self) -> None:
        self._parts_by_line: dict[str, list[list[Any]]] = {}

    def deserialize(self, text: str, as_type: Any) -> Any:
        """Dagster's `deserialize_value`, for the text of a `PartedSnapshot`, too."""
        first, *lines = text.split("\n")  # JSON that was not made here has one line
        snapshot = deserialize_value(first, as_type)
        if not lines:
            return snapshot
        self._parts_by_line = {line: self._parts_by_line.get(line) or _read(line) for line in lines}
        nodes = [node for of_part in self._parts_by_line.values() for node in of_part[0]]
        checks = [check for of_part in self._parts_by_line.values() for check in of_part[1]]
        return copy(snapshot, asset_nodes=nodes, asset_check_nodes=checks)


def keep_loaded_parts() -> None:
    """Have this process, a service of Dagster's, keep the parts of snapshots that it has loaded.

    Its garbage collector, too, looks at all that is kept, again and again while Dagster makes a graph of it:
    so it does that more rarely.
    """
    gc.set_threshold(COLLECT_AFTER)
    setattr(snapshot_repository, "deserialize_value", KeptParts().deserialize)  # noqa: B010
