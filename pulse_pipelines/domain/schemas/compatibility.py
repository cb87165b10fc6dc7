"""Compatibility: whether a dataset may move from one version of its schema to a newer one.

The rule: the new version accepts everything that the old one accepts, for the declared properties; an added
optional property is always allowed. And the table keeps every column: same name, and the same type or one
that holds the same values (integer → number, a struct with more members).

The comparison descends into keywords that state what is accepted (`properties`, `items`, `$ref` ...);
keywords that can invert acceptance (`not`, `if`, `oneOf` ...) must be the same in both. So it may refuse a
change that a person sees to be harmless, but never allows an incompatible one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pulse_pipelines.domain.event import json_pointer
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.columns import Column, FieldType, Kind, columns, property_of, widens
from pulse_pipelines.domain.schemas.discriminators import unions
from pulse_pipelines.domain.schemas.equivalence import Equivalence
from pulse_pipelines.domain.schemas.subschemas import resolve


@dataclass(frozen=True)
class Incompatibility:
    """A change by which the new version could refuse, or lose, something that the old one accepted."""

    pointer: str
    """JSON pointer into the schema, to the change."""
    change: str
    """The change, as text."""
    reason: str
    """Why the dataset cannot follow it."""


def incompatibilities(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Incompatibility]:
    """All incompatibilities that prevent a dataset's move from `old` to `new`; empty if it is allowed.

    Args:
        old, new: documents that `schema.check_document` returned.
    """
    drafts = [str(document["$schema"]).removesuffix("#") for document in (old, new)]
    if drafts[0] != drafts[1]:
        change = f"the draft {drafts[0]} became {drafts[1]}"
        return [Incompatibility("/$schema", change, "keywords mean other things in another draft")]
    before, after = bundled(old), bundled(new)
    comparison = _Comparison(before, after)
    comparison.schemas("", before, after)
    pointers = {incompatibility.pointer for incompatibility in comparison.incompatibilities}
    return comparison.incompatibilities + _columns(columns(old), columns(new), pointers)


def _not_above(old: Any, new: Any) -> bool:
    return _numbers(old, new) and new <= old


def _not_below(old: Any, new: Any) -> bool:
    return _numbers(old, new) and new >= old


def _never(old: Any, new: Any) -> bool:
    return False


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    # By keyword: whether a new bound is as wide as the old one, and the reason to give if not.
    "minimum": (_not_above, "smaller values were accepted before"),
    "exclusiveMinimum": (_not_above, "smaller values were accepted before"),
    "minLength": (_not_above, "shorter strings were accepted before"),
    "minItems": (_not_above, "shorter arrays were accepted before"),
    "minProperties": (_not_above, "objects with fewer properties were accepted before"),
    "maximum": (_not_below, "larger values were accepted before"),
    "exclusiveMaximum": (_not_below, "larger values were accepted before"),
    "maxLength": (_not_below, "longer strings were accepted before"),
    "maxItems": (_not_below, "longer arrays were accepted before"),
    "maxProperties": (_not_below, "objects with more properties were accepted before"),
    "uniqueItems": (_never, "arrays with equal items were accepted before"),
}
UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))
APPLICATORS = ("items", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "additionalProperties")
DEPENDENT = ("dependentRequired", "dependentSchemas", "dependencies", "propertyNames")
OF_VALUES = ("type", "enum", "const", "pattern", "multipleOf", "contentEncoding", "contentMediaType")
MAY_GO = frozenset((*APPLICATORS, *DEPENDENT, *OF_VALUES, *BOUNDS, *UNEVALUATED))
"""Keywords whose removal only widens what is accepted; the effect of others depends on their neighbours."""
_ANYTHING: dict[str, Any] = {}


class _Comparison:
    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.incompatibilities: list[Incompatibility] = []
        self._old, self._new = old, new
        self._same = Equivalence(old, new)
        self._compared: set[tuple[int, int]] = set()
        self._unions = unions(old), unions(new)

    def schemas(self, pointer: str, old: Any, new: Any) -> None:
        """Compare two subschemas in the same place; `pointer` is the new one's."""
        if old is False or new is True or self._same.schemas(old, new):
            return
        if new is False:
            self._add(pointer, "no value is accepted", "values were accepted here before")
            return
        old = _ANYTHING if old is True else old
        old, _ = self._target(old, self._old, pointer)
        new, pointer = self._target(new, self._new, pointer)
        if not isinstance(old, dict) or not isinstance(new, dict):
            self._add(pointer, "the reference changed", "where it leads cannot be compared")
            return
        if (id(old), id(new)) in self._compared:  # a recursive schema: compared, or about to be
            return
        self._compared.add((id(old), id(new)))
        self._keywords(pointer, old, new)

    def _target(self, node: Any, root: Mapping[str, Any], pointer: str) -> tuple[Any, str]:
        """Target and pointer of a subschema that consists of a reference only; else the subschema itself."""
        visited = set()
        while isinstance(node, dict) and (reference := self._same.only_reference(node)) is not None:
            if not reference.startswith("#") or reference in visited:
                return None, pointer
            visited.add(reference)
            node, pointer = resolve(reference, root), reference[1:]
        return node, pointer

    def _keywords(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if (
            "$ref" in old or "$ref" in new
        ):  # with other keywords beside it, whose meaning depends on the draft
            self._add(f"{pointer}/$ref", "keywords beside a reference changed", "they cannot be compared")
            return
        handlers = {
            "properties": self._properties,
            "required": self._required,
            "type": self._type,
            "enum": self._enum,
            "items": self._items,
            "additionalProperties": self._additional,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "allOf": self._all_of,
        }
        mixed = UNEVALUATED & new.keys()
        for keyword in sorted(self._same.keywords(old) | self._same.keywords(new)):
            where = f"{pointer}/{keyword}"
            if self._same.values(keyword, old, new):
                continue
            if keyword in ("properties", "required"):
                handlers[keyword](where, old, new)
            elif mixed:
                beside = sorted(mixed)[0]
                self._add(
                    where, f"{keyword} changed", f"{beside} depends on it: such a change is not compared"
                )
            elif keyword not in new and keyword in MAY_GO:
                continue
            elif keyword not in old and keyword not in ("additionalProperties", "enum"):
                self._add(where, f"{keyword} was added", "values that it refuses were accepted before")
            elif keyword in BOUNDS:
                wide, reason = BOUNDS[keyword]
                if not wide(old[keyword], new[keyword]) and new[keyword] is not False:  # false: of draft-04
                    self._add(where, f"{old[keyword]} became {new[keyword]}", reason)
            elif keyword in handlers:
                handlers[keyword](where, old, new)
            else:
                self._add(where, f"{keyword} changed", "it cannot be told that all it accepted is accepted")

    def _properties(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name, schema in before.items():
            where = pointer + json_pointer([name])
            if name in after:
                self.schemas(where, schema, after[name])
            else:
                self._add(where, "the property was removed", "events and rows have it")

    def _required(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        for name in new.get("required", []):
            if name not in old.get("required", []):
                was_declared = name in old.get("properties", {})
                change = f"{name!r} became required" if was_declared else f"{name!r} was added as required"
                self._add(pointer, change, "events without it were accepted before")

    def _type(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        before, after = _types(old["type"]), _types(new["type"])
        if "number" in after:
            after |= {"integer"}
        if lost := sorted(before - after):
            change = f"{' or '.join(sorted(before))} became {' or '.join(sorted(_types(new['type'])))}"
            self._add(pointer, change, f"{lost[0]} was accepted before")

    def _enum(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if "enum" not in old and "const" not in old:
            self._add(pointer, "enum was added", "other values were accepted before")
        for value in old.get("enum", [old["const"]] if "const" in old else []):
            if not any(self._same.json(value, other) for other in new["enum"]):
                self._add(pointer, f"{value!r} was removed", "it was accepted before")

    def _items(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        if isinstance(old["items"], list) or isinstance(new["items"], list):
            self._add(pointer, "items changed", "items by position are not compared")
        else:
            self.schemas(pointer, old["items"], new["items"])

    def _additional(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        before, after = old.get("additionalProperties", True), new.get("additionalProperties", True)
        if after is False:
            self._add(pointer, "undeclared properties are refused", "they were accepted before")
        else:
            self.schemas(pointer, before, after)

    def _any_of(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Choices may be added at the end, or anywhere if they have a discriminator."""
        if self._choices(pointer, "anyOf", old, new):
            return
        if len(new["anyOf"]) < len(old["anyOf"]):
            self._add(pointer, "a choice was removed", "it was accepted before")
        for index, (before, after) in enumerate(zip(old["anyOf"], new["anyOf"], strict=False)):
            self.schemas(f"{pointer}/{index}", before, after)

    def _one_of(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Choices with a discriminator are compared by its values, and others may be added."""
        if not self._choices(pointer, "oneOf", old, new):
            self._add(pointer, "oneOf changed", "it cannot be told that all it accepted is accepted")

    def _choices(self, pointer: str, keyword: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Compare the choices by value if both versions have the same discriminator; returns whether so."""
        before, after = self._unions[0].get(id(old)), self._unions[1].get(id(new))
        if before is None or after is None:
            return False
        if before.member != after.member or {before.keyword, after.keyword} != {keyword}:
            return False
        for values, schema in before.choices:
            where = [number for number, choice in enumerate(after.choices) if values <= choice.values]
            if where:
                self.schemas(f"{pointer}/{where[0]}", schema, after.choices[where[0]].schema)
            else:
                change = f"the choice whose {before.member} is {' or '.join(sorted(values))} was removed"
                self._add(pointer, change, "it was accepted before")
        return True

    def _all_of(self, pointer: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Conditions may be removed at the end."""
        if len(new["allOf"]) > len(old["allOf"]):
            self._add(pointer, "a condition was added", "values that it refuses were accepted before")
        for index, (before, after) in enumerate(zip(old["allOf"], new["allOf"], strict=False)):
            self.schemas(f"{pointer}/{index}", before, after)

    def _add(self, pointer: str, change: str, reason: str) -> None:
        self.incompatibilities.append(Incompatibility(pointer, change, reason))


def _types(declared: Any) -> set[str]:
    return set(declared) if isinstance(declared, list) else {declared}


def _columns(old: tuple[Column, ...], new: tuple[Column, ...], reported: set[str]) -> list[Incompatibility]:
    """Columns that the new version would lose, rename or retype, without losses at pointers in `reported`."""
    losses = []
    after = {column.field: column for column in new}
    for column in old:
        successor = after.get(column.field)
        pointer = "/properties" + json_pointer([column.field])
        if successor is None:
            if pointer not in reported:
                losses.append(Incompatibility(pointer, "nothing declares the property", "rows have it"))
            continue
        if successor.name != column.name:
            change = f"the column {column.name} would be called {successor.name}"
            losses.append(Incompatibility(pointer, change, "engines read it by its name"))
        elif not holds(successor.type, column.type):
            change = f"the column {column.name} would be {successor.type}, not {column.type}"
            losses.append(Incompatibility(pointer, change, "the rows that it has cannot be kept in it"))
        elif (like := property_of(column.name)) != column.field and widens(successor.type, column.type):
            # Whose digits those in `_extra` are, files tell by the column's name alone.
            change = f"the column {column.name} would be {successor.type}, not {column.type}"
            why = f"it is called like that of a property {like!r}, and keeps its type"
            losses.append(Incompatibility(pointer, change, why))
    return losses


def holds(new: FieldType, old: FieldType) -> bool:
    """Whether a column of type `new` holds every value of type `old`: equal, widened or with more members."""
    if old.kind is Kind.LONG and new.kind is Kind.DOUBLE:
        return True
    if new.kind is not old.kind:
        return False
    if old.item is not None and new.item is not None:
        return holds(new.item, old.item)
    members = dict(new.fields)
    return all(name in members and holds(members[name], member) for name, member in old.fields)
