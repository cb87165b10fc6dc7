"""Shapes: an over-approximation of the values that a schema accepts, from which column types are derived.

A shape is a set of JSON types, with the shapes of array items and of declared object members. `allOf`, `$ref`
and adjacent keywords narrow it; `anyOf`, `oneOf`, `then` and `else` are choices, whose shape is their union.
Each subschema is visited once: where it refers to itself, the inner shape is anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pulse_pipelines.domain.schemas.subschemas import (
    DEFINITIONS,
    Subschema,
    children,
    dict_of,
    draft_of,
    list_of,
    resolve,
)

FRACTION = "fraction"
"""The type of numbers that are not integers; "number" in a schema is both."""
EVERY = frozenset(("null", "boolean", "integer", FRACTION, "string", "array", "object"))
MAX_WORK = 100_000
"""Merged shapes and members (references can multiply them) beyond which the result is anything."""
MAX_LEVELS = 50
"""Nesting of merges beyond which the result is anything."""


@dataclass(frozen=True, eq=False)
class ValueShape:
    types: frozenset[str] = EVERY
    format: str | None = None
    """The format of all strings; None if it differs or there is none."""
    item: "ValueShape | None" = None
    """The shape of array items; None if it is unknown."""
    members: Mapping[str, "ValueShape"] = field(default_factory=dict)
    """The shapes of declared object members, by name."""
    rest: "ValueShape | None" = None
    """The shape of all other members; None if it is not declared."""
    declared: bool = True
    """Whether a schema declares the value; False for members that are accepted without a declaration."""
    certain: bool = True
    """Whether every accepted value has one of the types, whichever choice it follows."""

    def member(self, name: str) -> "ValueShape":
        """The shape of a member."""
        return self.members.get(name) or self.rest or UNDECLARED


ANYTHING = ValueShape()
NOTHING = ValueShape(frozenset())
UNDECLARED = ValueShape(declared=False)


class Shapes:
    """The shapes of the subschemas of one bundle."""

    def __init__(self, root: Subschema) -> None:
        self._root = root
        # Drafts up to 7 ignore all keywords beside a reference.
        self._draft = draft_of(root)
        self._alone = self._draft <= 7
        self._by_node: dict[int, ValueShape] = {}
        self._merged: dict[tuple[bool, int, int], tuple[ValueShape, ValueShape, ValueShape]] = {}
        self._work = self._level = 0
        self._compute(root)

    def of(self, node: Any) -> ValueShape:
        """The shape of a subschema; anything while it is still being computed."""
        if not isinstance(node, dict):
            return NOTHING if node is False else ANYTHING
        return self._by_node.get(id(node), ANYTHING)

    def _compute(self, root: Subschema) -> None:
        """Compute the shapes of all subschemas bottom-up, iteratively, since chains may be long."""
        pending = [(root, self._inner(root))]
        visited = {id(root)}
        while pending:
            node, inner = pending[-1]
            child = next(
                (
                    subschema
                    for subschema in inner
                    if isinstance(subschema, dict) and id(subschema) not in visited
                ),
                None,
            )
            if child is not None:
                visited.add(id(child))
                pending.append((child, self._inner(child)))
            else:
                self._by_node[id(node)] = self._narrowed(self._parts(node))
                pending.pop()

    def _inner(self, node: Subschema) -> Iterator[Any]:
        if isinstance(reference := node.get("$ref"), str):
            yield resolve(reference, self._root)
        yield from (child for pointer, child in children(node) if pointer.split("/")[1] not in DEFINITIONS)

    def _parts(self, node: Subschema) -> Iterable[ValueShape]:
        """The shapes that a value of a subschema must all have."""
        reference = node.get("$ref")
        if not (isinstance(reference, str) and self._alone):
            yield self._by_keywords(node)
        if isinstance(reference, str):
            yield self.of(resolve(reference, self._root))
            if self._alone:
                return
        yield from map(self.of, list_of(node.get("allOf")))
        for keyword in ("anyOf", "oneOf"):
            if choices := list_of(node.get(keyword)):
                yield self._union(map(self.of, choices))
        if "if" in node and self._draft > 6:
            yield self._union(self.of(node[key]) if key in node else UNDECLARED for key in ("then", "else"))
        for keyword in ("dependentSchemas", "dependencies"):
            for child in dict_of(node.get(keyword)).values():
                if isinstance(child, dict):
                    yield self._union((self.of(child), UNDECLARED))

    def _by_keywords(self, node: Subschema) -> ValueShape:
        """The shape by a subschema's own keywords, without references and choices."""
        types, declared = EVERY, node.get("type")
        if declared is not None:
            named = frozenset(declared if isinstance(declared, list) else [declared])
            types = named & EVERY | ({"integer", FRACTION} if "number" in named else set())
        constant = "const" in node and self._draft > 4
        options = [node["const"]] if constant else node.get("enum")
        if declared is None and isinstance(options, list):  # a declared type takes precedence over options
            types = frozenset(map(_type_of, options))
        items, item = node.get("items"), None
        if "prefixItems" not in node and isinstance(items, dict | bool):
            item = self.of(items)
        undeclared: ValueShape | None = None
        if "additionalProperties" in node and "patternProperties" not in node:
            undeclared = self.of(node["additionalProperties"])
            undeclared = None if undeclared is ANYTHING else undeclared
        members = {name: self.of(child) for name, child in dict_of(node.get("properties")).items()}
        form = node.get("format")
        if types is EVERY and item is undeclared is form is None and not members:
            return ANYTHING
        return ValueShape(types, form if isinstance(form, str) else None, item, members, undeclared)

    def _narrowed(self, parts: Iterable[ValueShape]) -> ValueShape:
        narrowed = ANYTHING
        for part in parts:
            narrowed = self._merge(narrowed, part, narrow=True)
        return narrowed

    def _union(self, choices: Iterable[ValueShape]) -> ValueShape:
        union = NOTHING
        for choice in choices:
            union = self._merge(union, choice, narrow=False)
        return union

    def _merge(self, a: ValueShape, b: ValueShape, *, narrow: bool) -> ValueShape:
        if a is b:
            return a
        key = (narrow, id(a), id(b))
        if (cached := self._merged.get(key)) is not None:
            return cached[2]
        self._work += 1 + len(a.members) + len(b.members)
        if self._work > MAX_WORK or self._level > MAX_LEVELS:
            return ValueShape(members=dict.fromkeys({**a.members, **b.members}, ANYTHING))
        self._level += 1
        merged = self._both(a, b) if narrow else self._either(a, b)
        self._level -= 1
        self._merged[key] = (a, b, merged)  # keeps both alive, so that no other shape gets their ids
        return merged

    def _both(self, a: ValueShape, b: ValueShape) -> ValueShape:
        if b is ANYTHING or not b.declared:
            return a if a.declared else b
        if a is ANYTHING or not a.declared:
            return b
        # An uncertain shape rules nothing out.
        types = a.types & b.types or (b.types if not a.certain else a.types if not b.certain else frozenset())
        formats = {a.format, b.format} - {None}
        return ValueShape(
            types,
            formats.pop() if len(formats) == 1 else None,
            self._meet(a.item, b.item),
            self._members(a, b, narrow=True),
            self._meet(a.rest, b.rest),
            certain=(a.certain and (b.certain or types == a.types)) or (b.certain and types == b.types),
        )

    def _meet(self, a: ValueShape | None, b: ValueShape | None) -> ValueShape | None:
        return self._merge(a, b, narrow=True) if a and b else a or b

    def _either(self, a: ValueShape, b: ValueShape) -> ValueShape:
        for one, other in ((a, b), (b, a)):
            if not one.types:
                return other
            if not one.declared:
                return self._doubtful(other) if other.declared else one
        # An uncertain value may be of any type, with undeclared members and items.
        if not a.certain and not {"object", "array"} <= a.types:
            b = self._doubtful(b)
        if not b.certain and not {"object", "array"} <= b.types:
            a = self._doubtful(a)
        by_kind = {
            kind: [shape for shape in (a, b) if kind in shape.types] for kind in ("string", "array", "object")
        }
        formats = {shape.format for shape in by_kind["string"]}
        merged = ValueShape(a.types | b.types, formats.pop() if len(formats) == 1 else None)
        certain = a.certain and b.certain
        if by_kind["array"]:
            item, *other_items = (shape.item for shape in by_kind["array"])
            if item and all(other_items):
                item = (
                    self._merge(item, other_items[0], narrow=False)
                    if other_items and other_items[0]
                    else item
                )
            merged = replace(merged, item=item if all(other_items) else None)
        if len(by_kind["object"]) == 1:
            merged = replace(merged, members=by_kind["object"][0].members, rest=by_kind["object"][0].rest)
        elif by_kind["object"]:
            undeclared = self._merge(a.rest, b.rest, narrow=False) if a.rest and b.rest else None
            merged = replace(merged, members=self._members(a, b, narrow=False), rest=undeclared)
        return replace(merged, certain=certain)

    def _doubtful(self, shape: ValueShape) -> ValueShape:
        """The shape if one choice declares it, and another accepts anything."""
        members = {
            name: self._merge(member, UNDECLARED, narrow=False) for name, member in shape.members.items()
        }
        item = self._merge(shape.item, UNDECLARED, narrow=False) if shape.item else None
        return replace(shape, members=members, item=item, rest=None, certain=False)

    def _members(self, a: ValueShape, b: ValueShape, *, narrow: bool) -> Mapping[str, ValueShape]:
        return {
            name: self._merge(a.member(name), b.member(name), narrow=narrow)
            for name in {**a.members, **b.members}
        }


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else FRACTION
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
