"""Looks: applications of subschemas to values of an event, which subschema to which value and how often.

Some keywords apply further subschemas to the *same* value (`allOf`, `anyOf`, `$ref`, `not` ...), others to a
member or an item of it. Where paths join, applications multiply: two references to a definition that has two
references ... The cost model is computed from these counts; this module itself refuses only schemas for which
the count, or the validator's stack, would grow without bounds.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.discriminators import Union, unions
from pulse_pipelines.domain.schemas.subschemas import (
    ANY_ITEM,
    ANY_MEMBER,
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    Subschema,
    children,
    dict_of,
    list_of,
    objects,
    resolve,
)
from pulse_resources.errors import UserError

MAX_LOOKS = 10_000
"""Maximum subschemas applied to one value."""
MAX_CHAIN = 100
"""Maximum length of a chain of subschemas that each apply the next one to the same value."""
MAX_WORK = 200_000
"""Maximum entries of closures, and edges, that the count itself visits."""
MEMBER_BYTES = 3
"""Bytes of a member's name besides its characters: two quotes and a colon."""
MAX_LEVELS = 200
"""Levels of an event: the most that `ingest.max_event_depth` can be."""

Edge = tuple[str, object, frozenset[object], Subschema]
"""The target of a child subschema: (members or items, the name or index or None for any, names or indexes
that are excluded, the subschema)."""
Value = tuple[str, str] | None
"""A discriminator and its value, by which one choice is selected; None: all choices are counted."""


class Place(NamedTuple):
    """A member or an item of a value, and the counts of subschemas that are applied to it."""

    once: bool
    """Whether a value has at most one: a member by its name, or an item by its index."""
    least: int
    """Minimum bytes of the event per occurrence, without the value itself."""
    looks: Counter[int]


class Way(NamedTuple):
    """The subschemas applied to a value, and to its parts, for one selection of choices by discriminator."""

    closure: Counter[int]
    """The subschemas applied to the value itself, with counts."""
    places: list[Place]


def branches(document: Mapping[str, Any]) -> int:
    """The maximum number of subschemas applied to one value, over all events.

    Raises:
        UserError: it is more than `MAX_LOOKS`, or infinite.
    """
    return Looks(bundled(document)).count()


def collected(document: Mapping[str, Any]) -> int:
    """The maximum number of errors of choices that the validator collects for one value before the first.

    Choices with a discriminator do not count: the validator applies only the selected one.
    """
    bundle = bundled(document)
    looks = Looks(bundle)
    pending = [choice for node in looks.nodes.values() for choice in looks.untold(node)]
    among: dict[int, Subschema] = {}
    while pending:
        node = pending.pop()
        if isinstance(node, dict) and id(node) not in among:
            among[id(node)] = node
            pending.extend(child for _, child in children(node))
            if isinstance(reference := node.get("$ref"), str):
                pending.append(resolve(reference, bundle))
    return looks.count(among) if among else 0


class Looks:
    """The applications of a bundle's subschemas, which are identified by their `id`.

    Raises:
        UserError: they refer to themselves endlessly, or too often.
    """

    def __init__(self, root: Subschema) -> None:
        self._root = root
        self.unions: Mapping[int, Union] = unions(root)
        """Unions with a discriminator, by the subschema that has them."""
        self.nodes: dict[int, Subschema] = {}
        """All subschemas that apply to some value."""
        self.ways: dict[int, list[Way]] = {}
        """Ways, by the subschema at which a value (the root, a member or an item) is entered."""
        self._closures: dict[tuple[int, Value], Counter[int]] = {}
        self._marks: dict[tuple[int, Value], Counter[int]] = {}
        self._work = 0
        pending = [self._root]
        while pending:
            node = pending.pop()
            if id(node) in self.ways:
                continue
            ways = self.ways[id(node)] = []
            for value in self._values(node):
                closure = self._closure(node, value)
                edges = list(self._edges(closure))
                self._worked(len(edges))
                ways.append(Way(closure, list(_by_place(edges))))
                pending.extend(child for _, (_, _, _, child) in edges)

    def untold(self, node: Subschema) -> Iterator[Any]:
        """The choices of a subschema without a discriminator."""
        union = self.unions.get(id(node))
        for keyword in ("anyOf", "oneOf"):
            if union is None or union.keyword != keyword:
                yield from list_of(node.get(keyword))

    def count(self, among: Container[int] | None = None) -> int:
        """The maximum number of subschemas applied to one value, of all or of those in `among`.

        Raises:
            UserError: more than `MAX_LOOKS`.
        """
        weights = {
            key: max(
                sum(times for inner, times in way.closure.items() if among is None or inner in among)
                for way in ways
            )
            for key, ways in self.ways.items()
        }
        most = dict(weights)
        for _ in range(MAX_LEVELS):  # one more level of the event each time, up to a fixed point
            deeper = {
                key: max(weights[key], *(_sum(place.looks, most) for way in ways for place in way.places), 0)
                for key, ways in self.ways.items()
            }
            if deeper[id(self._root)] > MAX_LOOKS:
                raise _too_many()
            if deeper == most:
                break
            most = {key: min(value, MAX_LOOKS + 1) for key, value in deeper.items()}
        return most[id(self._root)]

    def _values(self, node: Subschema) -> list[Value]:
        """A value for each selection of choices, by the discriminator with the most values."""
        by_member: dict[str, dict[str, list[int]]] = {}
        for key in self._closure(node, None):
            if (union := self.unions.get(key)) is not None:
                for choice in union.choices:
                    for text in choice.values:
                        by_member.setdefault(union.member, {}).setdefault(text, []).append(id(choice.schema))
        if not by_member:
            return [None]
        member = max(by_member, key=lambda name: len(by_member[name]))
        chosen = {tuple(choices): (member, text) for text, choices in by_member[member].items()}
        return list(chosen.values())

    def _worked(self, entries: int) -> None:
        self._work += entries
        if self._work > MAX_WORK:
            raise UserError("the schema's parts refer to each other too often to be counted")

    def _closure(self, node: Subschema, value: Value, path: tuple[int, ...] = ()) -> Counter[int]:
        if (closure := self._closures.get((id(node), value))) is not None:
            return closure
        if id(node) in path:
            raise UserError(
                "the schema refers to itself without going into a member or an item",
                fix="A $ref that leads back to itself must do so through properties or items",
            )
        if len(path) > MAX_CHAIN:
            raise UserError(
                f"more than {MAX_CHAIN} subschemas lead to the next without going into a member or an item",
                fix="Refer to the last one",
            )
        self.nodes[id(node)] = node
        visits = Counter({id(node): 1})
        for inner in self._in_place(node, value):
            self._add(visits, self._closure(inner, value, (*path, id(node))))
        if "unevaluatedProperties" in node or "unevaluatedItems" in node:
            self._add(visits, self._marked(node, value))
        self._closures[id(node), value] = visits
        return visits

    def _marked(self, node: Subschema, value: Value) -> Counter[int]:
        """The subschemas applied once more, to find the parts of a value that `node` has evaluated."""
        if (mark := self._marks.get((id(node), value))) is not None:
            return mark
        counts = Counter[int]()
        for inner in self._in_place(node, value):
            self._add(counts, self._closures[id(inner), value])
            self._add(counts, self._marked(inner, value))
        self._marks[id(node), value] = counts
        return counts

    def _add(self, counts: Counter[int], more: Counter[int]) -> None:
        self._worked(len(more))
        counts.update(more)
        if counts.total() > MAX_LOOKS:
            raise _too_many()

    def _in_place(self, node: Subschema, value: Value) -> Iterator[Subschema]:
        if isinstance(reference := node.get("$ref"), str):
            yield from objects([resolve(reference, self._root)])
        yield from objects(node.get(keyword) for keyword in IN_PLACE)
        union = self.unions.get(id(node))
        for keyword in IN_PLACE_LISTS:
            if (
                union is not None
                and union.keyword == keyword
                and value is not None
                and value[0] == union.member
            ):
                yield from (choice.schema for choice in union.choices if value[1] in choice.values)
            else:
                yield from objects(list_of(node.get(keyword)))
        for keyword in IN_PLACE_MAPS:
            yield from objects(dict_of(node.get(keyword)).values())

    def _edges(self, closure: Counter[int]) -> Iterator[tuple[int, Edge]]:
        for key, times in closure.items():
            for edge in _children(self.nodes[key]):
                yield times, edge


def _children(node: Subschema) -> Iterator[Edge]:
    """The edges from `node` to subschemas that it applies to members and items of a value."""
    properties = dict_of(node.get("properties"))
    named = frozenset[object](properties)
    members: list[tuple[object, frozenset[object], Any]] = [
        *((name, frozenset(), child) for name, child in properties.items()),
        *((None, frozenset(), child) for child in dict_of(node.get("patternProperties")).values()),
        *((None, frozenset(), node.get(keyword)) for keyword in ANY_MEMBER),
        (None, named, node.get("additionalProperties")),
    ]
    first = list_of(node.get("prefixItems")) or list_of(node.get("items"))
    counted = frozenset[object](range(len(first)))
    items: list[tuple[object, frozenset[object], Any]] = [
        *((index, frozenset(), child) for index, child in enumerate(first)),
        *((None, frozenset(), node.get(keyword)) for keyword in ANY_ITEM),
        *((None, counted, node.get(keyword)) for keyword in ("items", "additionalItems")),
    ]
    for kind, places in (("member", members), ("item", items)):
        for place, but, child in places:
            if isinstance(child, dict):
                yield kind, place, but, child


def _by_place(edges: Iterable[tuple[int, Edge]]) -> Iterator[Place]:
    everywhere: dict[str, list[tuple[int, frozenset[object], int]]] = {"member": [], "item": []}
    named: dict[tuple[str, object], Counter[int]] = {}
    for times, (kind, place, but, child) in edges:
        if place is None:
            everywhere[kind].append((times, but, id(child)))
        else:
            named.setdefault((kind, place), Counter())[id(child)] += times
    for kind, edges_of_all in everywhere.items():
        elsewhere: Counter[int] = Counter()
        for times, _, child_id in edges_of_all:
            elsewhere[child_id] += times
        yield Place(False, MEMBER_BYTES if kind == "member" else 0, elsewhere)
        for (other_kind, place), counts in named.items():
            if other_kind == kind:
                for times, but, child_id in edges_of_all:
                    if place not in but:
                        counts[child_id] += times
    for (kind, place), counts in named.items():
        yield Place(True, MEMBER_BYTES + len(str(place)) if kind == "member" else 0, counts)


def _sum(place: Counter[int], most: Mapping[int, int]) -> int:
    return sum(times * most[key] for key, times in place.items())


def _too_many() -> UserError:
    return UserError(
        f"more than {MAX_LOOKS:,} subschemas can look at one value of an event",
        fix="Use fewer anyOf, allOf, oneOf and $ref for one value; choices that differ in a required "
        "member with a const of its own count as one",
    )
