"""Looks: which subschemas of a schema look at which values of an event, and how often.

Some keywords apply further subschemas to the *same* value (`allOf`, `anyOf`, `$ref`, `not` ...), others go
into a member or an item of it. Where paths meet again, a small document multiplies: two references to a
definition that has two references ... What an event may cost is counted on this; here only so much is refused
that the count itself, and the validator's stack, stay within bounds.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pulse_pipelines.domain.bundle import bundled
from pulse_pipelines.domain.discriminators import Union, unions
from pulse_pipelines.domain.subschemas import (
    ANY_ITEM,
    ANY_MEMBER,
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    Node,
    children,
    dict_of,
    list_of,
    objects,
    resolve,
)
from pulse_resources.errors import UserError

MAX_LOOKS = 10_000
"""Subschemas that may look at one value."""
MAX_CHAIN = 100
"""Subschemas of which each applies the next one to the same value."""
MAX_WORK = 200_000
"""Entries of closures, and edges, that the count itself may look at."""
MEMBER_BYTES = 3
"""Of a member's name without its characters: two quotes and a colon."""
MAX_LEVELS = 200
"""Levels of an event: the most that `ingest.max_event_depth` can be."""

Edge = tuple[str, object, frozenset[object], Node]
"""What a child subschema applies to: (members or items, the name or index or None for any, those that it
leaves out, the subschema)."""
Value = tuple[str, str] | None
"""A member and its string, by which choices are told apart; None: all of them are counted."""


class Place(NamedTuple):
    """A member or an item of a value, and the subschemas that look at it there, each so often."""

    once: bool
    """Whether a value has at most one: it is a member by its name, or an item by its index."""
    least: int
    """Bytes that the event spends on being there, without the value's own."""
    looks: Counter[int]


class Way(NamedTuple):
    """What looks at a value that is of one kind, where choices are told apart, and at the value's parts."""

    closure: Counter[int]
    """Everything that looks at the value itself, and how often."""
    places: list[Place]


def branches(document: Mapping[str, Any]) -> int:
    """How many subschemas can look at one value of an event, whatever the event is.

    Raises:
        UserError: more than `MAX_LOOKS`, or without an end.
    """
    return Looks(bundled(document)).count()


def collected(document: Mapping[str, Any]) -> int:
    """How many errors of choices the validator may collect for one value before it reports the first.

    Those of choices that are told apart are not collected: the validator looks at the one alone.
    """
    bundle = bundled(document)
    looks = Looks(bundle)
    pending = [choice for node in looks.nodes.values() for choice in looks.untold(node)]
    among: dict[int, Node] = {}
    while pending:
        node = pending.pop()
        if isinstance(node, dict) and id(node) not in among:
            among[id(node)] = node
            pending.extend(child for _, child in children(node))
            if isinstance(reference := node.get("$ref"), str):
                pending.append(resolve(reference, bundle))
    return looks.count(among) if among else 0


class Looks:
    """Which subschemas of a bundle look at which values of an event; they are known by their `id`.

    Raises:
        UserError: they refer to themselves without an end, or too often.
    """

    def __init__(self, root: Node) -> None:
        self._root = root
        self.unions: Mapping[int, Union] = unions(root)
        """By subschema: its choices of which only one is looked at."""
        self.nodes: dict[int, Node] = {}
        """Every subschema that can look at a value."""
        self.ways: dict[int, list[Way]] = {}
        """By subschema that is entered with a value of its own: what looks at that value and its parts."""
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

    def untold(self, node: Node) -> Iterator[Any]:
        """The choices of a subschema that are not told apart."""
        told = self.unions.get(id(node))
        for keyword in ("anyOf", "oneOf"):
            if told is None or told.keyword != keyword:
                yield from list_of(node.get(keyword))

    def count(self, among: Container[int] | None = None) -> int:
        """The most subschemas that look at one value, of all or `among` some.

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
        for _ in range(MAX_LEVELS):  # one level of the event more each time, until that changes nothing
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

    def _values(self, node: Node) -> list[Value]:
        """A value for each way in which choices are told apart, by the member that has most of them."""
        found: dict[str, dict[str, list[int]]] = {}
        for key in self._closure(node, None):
            if (union := self.unions.get(key)) is not None:
                for choice in union.choices:
                    for text in choice.values:
                        found.setdefault(union.member, {}).setdefault(text, []).append(id(choice.schema))
        if not found:
            return [None]
        member = max(found, key=lambda name: len(found[name]))
        chosen = {tuple(choices): (member, text) for text, choices in found[member].items()}
        return list(chosen.values())

    def _worked(self, entries: int) -> None:
        self._work += entries
        if self._work > MAX_WORK:
            raise UserError("the schema's parts refer to each other too often to be counted")

    def _closure(self, node: Node, value: Value, path: tuple[int, ...] = ()) -> Counter[int]:
        if (known := self._closures.get((id(node), value))) is not None:
            return known
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
        found = Counter({id(node): 1})
        for inner in self._in_place(node, value):
            self._add(found, self._closure(inner, value, (*path, id(node))))
        if "unevaluatedProperties" in node or "unevaluatedItems" in node:
            self._add(found, self._marked(node, value))
        self._closures[id(node), value] = found
        return found

    def _marked(self, node: Node, value: Value) -> Counter[int]:
        """What looks at a value once more to find out which parts of it `node` has evaluated."""
        if (known := self._marks.get((id(node), value))) is not None:
            return known
        found = Counter[int]()
        for inner in self._in_place(node, value):
            self._add(found, self._closures[id(inner), value])
            self._add(found, self._marked(inner, value))
        self._marks[id(node), value] = found
        return found

    def _add(self, found: Counter[int], more: Counter[int]) -> None:
        self._worked(len(more))
        found.update(more)
        if found.total() > MAX_LOOKS:
            raise _too_many()

    def _in_place(self, node: Node, value: Value) -> Iterator[Node]:
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


def _children(node: Node) -> Iterator[Edge]:
    """The subschemas that `node` applies to members and items of a value."""
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
    for kind, others in everywhere.items():
        elsewhere: Counter[int] = Counter()
        for times, _, child_id in others:
            elsewhere[child_id] += times
        yield Place(False, MEMBER_BYTES if kind == "member" else 0, elsewhere)
        for (other_kind, place), counts in named.items():
            if other_kind == kind:
                for times, but, child_id in others:
                    if place not in but:
                        counts[child_id] += times
    for (kind, place), counts in named.items():
        yield Place(True, MEMBER_BYTES + len(str(place)) if kind == "member" else 0, counts)


def _sum(place: Counter[int], most: Mapping[int, int]) -> int:
    return sum(times * most[key] for key, times in place.items())


def _too_many() -> UserError:
    return UserError(
        f"more than {MAX_LOOKS:,} subschemas can look at one value of an event",
        fix="Use fewer anyOf, allOf, oneOf and $ref for one value; choices that are told apart by a required "
        "member with a const of its own count as one",
    )
