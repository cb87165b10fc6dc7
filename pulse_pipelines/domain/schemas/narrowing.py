"""The place where a large value violates a schema of choices, searched part by part: choices collect errors.

The validator reports the errors of a choice when it has collected those of all, which for large values are
too many. Whether a part is valid it says without collecting any: so the place is narrowed down from the
root, by members, items and the nearest choice, until the rest is small.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote, unquote

from pulse_pipelines.domain.event import values
from pulse_pipelines.domain.schemas.subschemas import Subschema, children, dict_of, escaped, list_of, resolve

LOOKS = 10
"""Times the values of the whole that may be validated to narrow the place down."""
ValuePath = list[str | int]


class Checks(Protocol):
    """Validators of subschemas."""

    def get(self, pointer: str) -> Any | None:
        """The validator of a subschema; None: it cannot be made."""


class Narrowing:
    """The place of a violation of one bundle.

    Args:
        checks: the validators of the bundle's subschemas, by pointer as a fragment; None: not to be had.
        is_small: whether the errors of a value may be collected.
    """

    def __init__(self, root: Subschema, checks: "Checks", is_small: Callable[[Any], bool]) -> None:
        self._root, self._checks, self._is_small = root, checks, is_small
        self._budget = 0
        self._validity: dict[tuple[str, int], bool] = {}
        """Whether a part follows a subschema, by its pointer and the `id` of the part."""

    def place(self, data: Any) -> tuple[ValuePath, Any, Any]:
        """The path to a part that violates its subschema, the part, and the validator to ask what is wrong.

        If the part is still too large, a schema stands for the validator: the keywords that have no choices.
        """
        self._budget = LOOKS * values(data)
        path: ValuePath = []
        pointer, value, visited = "#", data, set[tuple[str, int]]()
        while (pointer, id(value)) not in visited:
            visited.add((pointer, id(value)))
            if self._is_small(value) or not _may_choose(self._node(pointer)):
                return path, value, self._checks.get(pointer) or self._plain(pointer)
            for further, key, part in self._parts(pointer, value):
                if not self._is_valid(further, part):
                    path, pointer, value = [*path, *key], further, part
                    break
        return path, value, self._plain(pointer)

    def _plain(self, pointer: str) -> Subschema:
        """A subschema without the subschemas in it."""
        node, members = self._node(pointer), dict_of(self._node(pointer).get("properties"))
        simple = {name: value for name, value in node.items() if not _may_choose({name: value})}
        draft = {"$schema": self._root["$schema"]} if "$schema" in self._root else {}
        return draft | simple | ({"properties": {name: {} for name in members}} if members else {})

    def _node(self, pointer: str) -> Subschema:
        return dict_of(resolve(quote(pointer), self._root))

    def _is_valid(self, pointer: str, value: Any) -> bool:
        key = pointer, id(value)
        if (cached := self._validity.get(key)) is not None:
            return cached
        check = self._checks.get(pointer)
        self._budget -= values(value)
        is_valid = self._validity[key] = check is None or self._budget < 0 or bool(check.is_valid(value))
        return is_valid

    def _parts(self, pointer: str, value: Any) -> Iterator[tuple[str, ValuePath, Any]]:
        """Subschemas that parts of a value must follow, each with the path to its part, and the part."""
        node = self._node(pointer)
        if isinstance(reference := node.get("$ref"), str):
            if len(node) == 1:
                self._validity[unquote(reference), id(value)] = False
            yield unquote(reference), [], value
        if isinstance(value, dict):
            for name in dict_of(node.get("properties")):
                if name in value:
                    yield _below(pointer, "properties", name), [name], value[name]
        if isinstance(value, list) and isinstance(node.get("items"), dict):
            for index, item in enumerate(value):
                yield _below(pointer, "items"), [index], item
        for index, _ in enumerate(list_of(node.get("allOf"))):
            yield _below(pointer, "allOf", index), [], value
        if "if" in node:
            follows = "then" if self._is_valid(_below(pointer, "if"), value) else "else"
            yield _below(pointer, follows), [], value
        for keyword in ("oneOf", "anyOf"):
            choices = [_below(pointer, keyword, index) for index, _ in enumerate(list_of(node.get(keyword)))]
            if choices:
                yield min(choices, key=lambda choice: self._distance(choice, value)), [], value

    def _distance(self, pointer: str, value: Any) -> tuple[bool, int, int]:
        """How far a value is from a choice: by its type, by constant members, by members that it lacks."""
        node = self._node(pointer)
        for _ in range(8):
            if not isinstance(reference := node.get("$ref"), str):
                break
            pointer = unquote(reference)
            node = self._node(pointer)
        declared = node.get("type")
        is_object = isinstance(value, dict)
        fits = declared is None or is_object == (
            "object" in (declared if isinstance(declared, list) else [declared])
        )
        if not is_object:
            return not fits, 0, 0
        members: Mapping[str, Any] = dict_of(node.get("properties"))
        wrong_constants = sum(
            name in value and not self._is_valid(_below(pointer, "properties", name), value[name])
            for name, member in members.items()
            if {"const", "enum"} & dict_of(member).keys()
        )
        return not fits, wrong_constants, sum(name not in value for name in list_of(node.get("required")))


def _below(pointer: str, *parts: str | int) -> str:
    return "/".join((pointer, *(escaped(str(part)) for part in parts)))


def _may_choose(node: Any) -> bool:
    """Whether a subschema has choices, or refers to what may have some."""
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            if {"$ref", "oneOf", "anyOf"} & current.keys():
                return True
            pending.extend(current.values())
        elif isinstance(current, list):
            pending.extend(current)
    return False


def reachable(node: Any, root: Subschema, most: int) -> int:
    """The number of subschemas that a subschema has or refers to, itself included; at most `most` + 1."""
    visited, pending, count = set[int](), [node], 0
    while pending and count <= most:
        current = pending.pop()
        if isinstance(current, dict) and id(current) not in visited:
            visited.add(id(current))
            count += 1
            pending.extend(child for _, child in children(current))
            if isinstance(reference := current.get("$ref"), str):
                pending.append(resolve(reference, root))
    return count
