"""Bundles: a published schema with all references resolved to JSON pointers, and the same meaning.

Generators merge many documents into one: definitions have a `$schema` or an address of their own, refer to
each other by address, and many are unused. In a bundle every reference is a JSON pointer, only the root has
an address, and unused definitions are left out. Everything else keeps its place, so that a pointer into the
bundle is one into the document. References that cannot be resolved stay: `safety` refuses them.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urljoin

from pulse_pipelines.domain.schemas.subschemas import (
    DEFINITIONS,
    DYNAMIC,
    LISTS,
    MAPS,
    SINGLE,
    Subschema,
    address_keyword,
    children,
    dict_of,
    draft_of,
    escaped,
    resolve,
    subschemas,
)


def bundled(document: Mapping[str, Any]) -> dict[str, Any]:
    """The bundle of a document; the document itself if there is nothing to resolve."""
    root = dict(document) if not isinstance(document, dict) else document
    if any(keyword in node for _, node in subschemas(root) for keyword in DYNAMIC):
        return root
    return _Bundle(root).document()


def same_draft(root: Subschema, node: Subschema) -> bool:
    """Whether a subschema declares the root's draft, or none."""
    drafts = [str(schema.get("$schema", root.get("$schema"))).removesuffix("#") for schema in (root, node)]
    return drafts[0] == drafts[1]


class _Bundle:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._keyword = address_keyword(root)
        self._old = draft_of(root) <= 7
        self._places: dict[str, tuple[str, Subschema]] = {}
        """Pointers and subschemas, by address or anchor."""
        self._bases: dict[int, str] = {}
        """Base address of the references in a subschema, by its `id`."""
        self._index("", root, "")
        self._pointers: dict[int, str] = {}
        """Target pointers of resolved references, by the `id` of the referring subschema."""
        self._reached = {""}
        """Pointers that references lead to, and their ancestors."""
        self._strays: dict[str, Subschema] = {}
        """Targets of references outside all places of schemas, by name: they become definitions."""
        self._moved: dict[int, str] = {}
        """Pointers of these new definitions, by the `id` of the subschema."""
        self._follow()

    def document(self) -> dict[str, Any]:
        bundle: dict[str, Any] = self._copied("", self._root)
        if not self._strays:
            return bundle
        strays = {name: self._copied(f"/$defs/{escaped(name)}", node) for name, node in self._strays.items()}
        return bundle | {"$defs": dict_of(bundle.get("$defs")) | strays}

    def _index(self, pointer: str, node: Subschema, base: str) -> None:
        address = node.get(self._keyword)
        if isinstance(address, str) and not (self._old and "$ref" in node):
            address = urljoin(base, address) if not address.startswith("#") else base + address
            if not address.partition("#")[2]:
                base = address.removesuffix("#")
                self._places.setdefault(base, (pointer, node))
            elif self._old:  # what an anchor is in newer drafts
                self._places[address] = (pointer, node)
        if pointer == "":
            self._places.setdefault(base, (pointer, node))
        if isinstance(anchor := node.get("$anchor"), str):
            self._places[f"{base}#{anchor}"] = (pointer, node)
        self._bases[id(node)] = base
        for below, child in children(node):
            self._index(pointer + below, child, base)

    def _follow(self) -> None:
        """Find all subschemas reachable from the root, definitions only through references."""
        pending: list[tuple[str, Any, str]] = [("", self._root, "")]
        visited = set()
        while pending:
            pointer, node, base = pending.pop()
            if not isinstance(node, dict) or id(node) in visited:
                continue
            visited.add(id(node))
            base = self._bases.get(id(node), base)
            if isinstance(reference := node.get("$ref"), str) and (resolved := self._target(reference, base)):
                target, child, child_base = resolved
                if isinstance(child, dict) and id(child) not in self._bases:
                    name, target = target[1:], f"/$defs/{escaped(target[1:])}"
                    self._strays[name] = child
                    self._index(target, child, child_base)
                    self._moved[id(child)] = target
                target = self._moved.get(id(child), target)
                self._pointers[id(node)] = target
                parts = target.split("/")
                self._reached.update("/".join(parts[:count]) for count in range(1, len(parts) + 1))
                pending.append((target, child, child_base))
            for below, child in children(node):
                if below.split("/")[1] not in DEFINITIONS:
                    pending.append((pointer + below, child, base))

    def _target(self, reference: str, base: str) -> tuple[str, Any, str] | None:
        """Target pointer, target and base address of a reference; None if it is not in this document."""
        whole = base + reference if reference.startswith("#") else urljoin(base, reference)
        address, _, fragment = whole.partition("#")
        if fragment and not fragment.startswith("/"):
            place = self._places.get(f"{address}#{unquote(fragment)}")
            return (*place, address) if place else None
        if (within := self._places.get(address)) is None:
            return None
        target = resolve(f"#{fragment}", within[1])
        return (within[0] + unquote(fragment), target, address) if target is not None else None

    def _copied(self, pointer: str, node: Any) -> Any:
        """The node of the bundle; the node itself if nothing in it changes."""
        if not isinstance(node, dict):
            return node
        changed: dict[str, Any] = {}
        dropped = set()
        if (target := self._pointers.get(id(node))) is not None and not self._plain(node):
            changed["$ref"] = f"#{quote(target, safe='/~$')}"
        if pointer:
            dropped = {key for key in (self._keyword, "$anchor") if isinstance(node.get(key), str)}
            if "$schema" in node and same_draft(self._root, node):
                dropped.add("$schema")
        for keyword, value in node.items():
            copy = self._copied_value(f"{pointer}/{keyword}", keyword, value)
            if copy is not value:
                changed[keyword] = copy
        if not changed and not dropped:
            return node
        return {key: changed.get(key, value) for key, value in node.items() if key not in dropped}

    def _plain(self, node: Subschema) -> bool:
        """Whether the node's reference is a pointer into the document already."""
        at_root = self._bases[id(node)] == self._bases[id(self._root)]
        same = unquote(node["$ref"]) == f"#{self._pointers[id(node)]}"
        return at_root and same and (node["$ref"] == "#" or node["$ref"].startswith("#/"))

    def _copied_value(self, pointer: str, keyword: str, value: Any) -> Any:
        copy: Any = value
        if isinstance(value, list) and keyword in LISTS:
            copy = [self._copied(f"{pointer}/{index}", item) for index, item in enumerate(value)]
            return copy if any(a is not b for a, b in zip(copy, value, strict=True)) else value
        if isinstance(value, dict) and keyword in MAPS:
            names = {name: f"{pointer}/{escaped(name)}" for name in value}
            if keyword in DEFINITIONS:
                names = {name: place for name, place in names.items() if place in self._reached}
            copy = {name: self._copied(place, value[name]) for name, place in names.items()}
            same = len(copy) == len(value) and all(copy[name] is value[name] for name in copy)
            return value if same else copy
        return self._copied(pointer, value) if keyword in SINGLE else value
