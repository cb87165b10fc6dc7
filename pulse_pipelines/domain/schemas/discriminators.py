"""Discriminators: members whose value decides which choice of a `oneOf` or `anyOf` can apply.

Every choice of such a union describes an object, requires the member, and allows strings for it that no
other choice allows. So the member's value selects the choice to validate; `guards` rewrites schemas for the
validator accordingly, and `looks` counts on it.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from pulse_pipelines.domain.schemas.subschemas import (
    Subschema,
    dict_of,
    draft_of,
    list_of,
    resolve,
    subschemas,
)

MAX_LEVELS = 32
"""Maximum number of references and conditions between a choice and its member."""


class Choice(NamedTuple):
    values: frozenset[str]
    """Values of the member that select this choice."""
    schema: Subschema


class Union(NamedTuple):
    keyword: str
    """`oneOf` or `anyOf`."""
    member: str
    choices: tuple[Choice, ...]


def unions(root: Subschema) -> dict[int, Union]:
    """The unions with a discriminator in a bundle, by the `id` of their subschema.

    Unions that a reference leads into are left out, since their choices must keep their places.
    """
    if draft_of(root) < 7:  # they cannot say if and then
        return {}
    nodes, facts = list(subschemas(root)), _AllFacts(root)
    entered = {place for _, node in nodes for place in _entered(unquote(str(node.get("$ref"))).split("/"))}
    by_node = {}
    for pointer, node in nodes:
        for keyword in ("oneOf", "anyOf"):
            if "$ref" in node or len(list_of(node.get(keyword))) < 2:
                continue
            if f"#{pointer}/{keyword}" not in entered and (union := _discriminated(node, keyword, facts)):
                by_node[id(node)] = union
                break
    return by_node


def _entered(parts: list[str]) -> Iterator[str]:
    """The pointers of all lists of choices on the way of a pointer."""
    for number, part in enumerate(parts):
        if part in ("oneOf", "anyOf"):
            yield "/".join(parts[: number + 1])


class _Facts(NamedTuple):
    """Facts that hold for every value that a subschema accepts."""

    is_object: bool = False
    required: frozenset[str] = frozenset()
    """Members that are always present."""
    texts: Mapping[str, frozenset[str]] = MappingProxyType({})
    """All values of a member, if present, where these are strings only."""

    def determined(self) -> frozenset[str]:
        """Members that are always present, and whose values are all known."""
        return self.required.intersection(self.texts) if self.is_object else frozenset()

    def beside(self, other: "_Facts") -> "_Facts":
        """The facts of a value for which both hold."""
        texts = dict(self.texts)
        for name, text in other.texts.items():
            texts[name] = texts.get(name, text) & text
        return _Facts(self.is_object or other.is_object, self.required | other.required, texts)


class _AllFacts:
    def __init__(self, root: Subschema) -> None:
        self._root = root
        self._alone = draft_of(root) <= 7
        self._facts: dict[int, _Facts] = {}

    def of(self, schema: Any, level: int = 0) -> _Facts:
        """The facts of a subschema, or fewer; none beyond `MAX_LEVELS`, or for a reference to itself."""
        if not isinstance(schema, dict) or level > MAX_LEVELS:
            return _Facts()
        if (cached := self._facts.get(id(schema))) is None:
            self._facts[id(schema)] = _Facts()
            cached = self._facts[id(schema)] = self._new(schema, level + 1)
        return cached

    def _new(self, schema: Subschema, level: int) -> _Facts:
        facts = _Facts()
        if isinstance(reference := schema.get("$ref"), str):
            facts = self.of(resolve(reference, self._root), level)
            if self._alone:
                return facts
        required = frozenset(map(str, list_of(schema.get("required"))))
        members = dict_of(schema.get("properties")).items()
        texts = {name: texts for name, subschema in members if (texts := _texts(subschema)) is not None}
        facts = facts.beside(_Facts(schema.get("type") == "object", required, texts))
        for subschema in list_of(schema.get("allOf")):
            facts = facts.beside(self.of(subschema, level))
        for keyword in ("oneOf", "anyOf"):
            choices = [self.of(subschema, level) for subschema in list_of(schema.get(keyword))]
            if choices and all(choice.is_object for choice in choices):
                names = frozenset.intersection(*(choice.determined() for choice in choices))
                either = {name: frozenset[str]().union(*(c.texts[name] for c in choices)) for name in names}
                facts = facts.beside(_Facts(True, names, either))
        return facts


def _discriminated(node: Subschema, keyword: str, facts: _AllFacts) -> Union | None:
    choices = node[keyword]
    by_choice = [facts.of(choice) for choice in choices]
    for member in sorted(frozenset.intersection(*(choice_facts.determined() for choice_facts in by_choice))):
        values = [choice_facts.texts[member] for choice_facts in by_choice]
        if sum(map(len, values)) == len(frozenset[str]().union(*values)):
            return Union(keyword, member, tuple(map(Choice, values, choices)))
    return None


def _texts(fragment: Any) -> frozenset[str] | None:
    if not isinstance(fragment, dict) or "$ref" in fragment:
        return None
    options = [fragment["const"]] if "const" in fragment else list_of(fragment.get("enum"))
    texts = frozenset(option for option in options if isinstance(option, str))
    return texts if options and len(texts) == len(options) else None
