"""What a schema may cost: static bounds, so that neither checking it nor checking an event can blow up.

Some keywords apply further subschemas to the *same* value (`allOf`, `anyOf`, `$ref`, `not` ...), others go
into a member or an item of it. Where paths meet again, a small document multiplies: two references to a
definition that has two references ... Counted here is how many subschemas can look at one value of an
event, whatever the event is. Nothing is fetched: references outside the document are refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pulse_pipelines.domain.subschemas import (
    ANY_ITEM,
    ANY_MEMBER,
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    Node,
    dict_of,
    list_of,
    objects,
    resolve,
    subschemas,
)
from pulse_resources.errors import UserError

MAX_BRANCHES = 100
"""Subschemas that may look at one value."""
PATTERN_WEIGHT = 10
"""A pattern counts as this many: its time grows with its own size, too."""
MAX_PATTERNS = 100
MAX_PATTERN_BYTES = 1_000
MAX_WORK = 50_000
"""Edges that the count itself may look at."""
MEMBER_BYTES = 3
"""Of a member's name without its characters: two quotes and a colon."""
MAX_LEVELS = 200
"""Levels of an event: the most that `ingest.max_event_depth` can be."""

DYNAMIC = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")
Edge = tuple[str, object, frozenset[object], Node]
"""What a child subschema applies to: (members or items, the name or index or None for any, those that it
leaves out, the subschema)."""


class Place(NamedTuple):
    """A member or an item of a value, and the subschemas that look at it there, each so often."""

    once: bool
    """Whether a value has at most one: it is a member by its name, or an item by its index."""
    least: int
    """Bytes that the event spends on being there, without the value's own."""
    looks: Counter[int]


def check_bounds(document: Mapping[str, Any]) -> None:
    """Refuse a schema that is valid but that cannot be kept within bounds.

    Raises:
        UserError: it refers outside itself, refers dynamically, has an address inside, has too many or too
            long patterns, refers to itself without an end, or lets too many subschemas look at one value.
    """
    patterns = 0
    for pointer, node in subschemas(document):
        _check_addresses(pointer, node, document)
        found = [p for p in (node.get("pattern"), *dict_of(node.get("patternProperties"))) if p is not None]
        patterns += len(found)
        if any(len(str(pattern).encode()) > MAX_PATTERN_BYTES for pattern in found):
            raise UserError(f"a pattern at #{pointer} has more than {MAX_PATTERN_BYTES:,} bytes")
    if patterns > MAX_PATTERNS:
        raise UserError(f"the schema has {patterns:,} patterns, the limit is {MAX_PATTERNS}")
    branches(document)


def _check_addresses(pointer: str, node: Node, root: Node) -> None:
    for keyword in DYNAMIC:
        if keyword in node:
            raise UserError(f"{keyword} at #{pointer} is not supported", fix="Use $ref")
    for keyword in (_address_keyword(root), "$schema"):
        address = node.get(keyword)
        if node is not root and isinstance(address, str) and not address.startswith("#"):
            raise UserError(
                f"{keyword} at #{pointer}: only the schema as a whole may have one",
                fix="Refer to a part of the schema by its JSON pointer, such as #/$defs/address",
            )
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise UserError(
            f"a schema may not refer to {reference}: only references inside it are allowed",
            fix="Copy it into $defs and refer to it as #/$defs/<name>",
        )


def _address_keyword(root: Node) -> str:
    return "id" if "draft-04" in str(root.get("$schema")) else "$id"


def branches(document: Mapping[str, Any]) -> int:
    """How many subschemas can look at one value of an event, whatever the event is.

    Raises:
        UserError: more than `MAX_BRANCHES`, or without an end.
    """
    return Looks(document).count()


class Looks:
    """Which subschemas of a document look at which values of an event; they are known by their `id`.

    Raises:
        UserError: they refer to themselves without an end, too often, or to nothing.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._root = document
        self._anchors = _anchors(document)
        self._checked = {id(node) for _, node in subschemas(document)}
        self._marks: dict[int, Counter[int]] = {}
        self.nodes: dict[int, Node] = {}
        """Every subschema that can look at a value."""
        self.closures: dict[int, Counter[int]] = {}
        """By subschema: everything that looks at the same value, itself included, and how often."""
        self.places: dict[int, list[Place]] = {}
        """By subschema that is entered with a value of its own: what looks at that value's parts."""
        pending, work = [self._root], 0
        while pending:
            node = pending.pop()
            if id(node) in self.places:
                continue
            edges = list(self._edges(self._closure(node)))
            work += len(edges)
            if work > MAX_WORK:
                raise UserError("the schema's parts refer to each other too often to be counted")
            self.places[id(node)] = list(_by_place(edges))
            pending.extend(child for _, (_, _, _, child) in edges)

    def count(self) -> int:
        """The most subschemas that look at one value.

        Raises:
            UserError: more than `MAX_BRANCHES`.
        """
        weights = {key: self._weight(self.closures[key]) for key in self.places}
        most = dict(weights)
        for _ in range(MAX_LEVELS):  # one level of the event more each time, until that changes nothing
            deeper = {
                key: max(weights[key], *(_sum(place.looks, most) for place in places), 0)
                for key, places in self.places.items()
            }
            if deeper[id(self._root)] > MAX_BRANCHES:
                raise _too_many()
            if deeper == most:
                break
            most = {key: min(value, MAX_BRANCHES + 1) for key, value in deeper.items()}
        return most[id(self._root)]

    def _closure(self, node: Node, path: tuple[int, ...] = ()) -> Counter[int]:
        if (known := self.closures.get(id(node))) is not None:
            return known
        if id(node) in path:
            raise UserError(
                "the schema refers to itself without going into a member or an item",
                fix="A $ref that leads back to itself must do so through properties or items",
            )
        if len(path) > MAX_BRANCHES:
            raise _too_many()
        self.nodes[id(node)] = node
        found = Counter({id(node): 1})
        for inner in self._in_place(node):
            found.update(self._closure(inner, (*path, id(node))))
            self._check_weight(found)
        if "unevaluatedProperties" in node or "unevaluatedItems" in node:
            found.update(self._marked(node))
            self._check_weight(found)
        self.closures[id(node)] = found
        return found

    def _marked(self, node: Node) -> Counter[int]:
        """What looks at a value once more to find out which parts of it `node` has evaluated."""
        if (known := self._marks.get(id(node))) is not None:
            return known
        found = Counter[int]()
        for inner in self._in_place(node):
            found.update(self.closures[id(inner)])
            found.update(self._marked(inner))
            self._check_weight(found)
        self._marks[id(node)] = found
        return found

    def _check_weight(self, looks: Counter[int]) -> None:
        if self._weight(looks) > MAX_BRANCHES:
            raise _too_many()

    def _in_place(self, node: Node) -> Iterator[Node]:
        if isinstance(reference := node.get("$ref"), str):
            yield from objects([self._target(reference)])
        yield from objects(node.get(keyword) for keyword in IN_PLACE)
        for keyword in IN_PLACE_LISTS:
            yield from objects(list_of(node.get(keyword)))
        for keyword in IN_PLACE_MAPS:
            yield from objects(dict_of(node.get(keyword)).values())

    def _target(self, reference: str) -> Any:
        anchored = reference != "#" and not reference.startswith("#/")
        target = self._anchors.get(reference) if anchored else resolve(reference, self._root)
        if not isinstance(target, dict | bool):
            raise UserError(f"nothing is at {reference}: a $ref must lead to a schema")
        if id(target) not in self._checked:  # it leads to where no schema is expected: the same rules hold
            for pointer, node in subschemas(target, reference[1:]):
                _check_addresses(pointer, node, self._root)
                self._checked.add(id(node))
        return target

    def _edges(self, closure: Counter[int]) -> Iterator[tuple[int, Edge]]:
        for key, times in closure.items():
            for edge in _children(self.nodes[key]):
                yield times, edge

    def _weight(self, closure: Counter[int]) -> int:
        return sum(times * _weight(self.nodes[key]) for key, times in closure.items())


def _weight(node: Node) -> int:
    return 1 + PATTERN_WEIGHT * (("pattern" in node) + len(dict_of(node.get("patternProperties"))))


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


def _anchors(document: Mapping[str, Any]) -> dict[str, Node]:
    found = {}
    for _, node in subschemas(document):
        for keyword in ("$anchor", _address_keyword(document)):
            name = node.get(keyword)
            if isinstance(name, str) and (keyword == "$anchor" or name.startswith("#")):
                found["#" + name.removeprefix("#")] = node
    return found


def _too_many() -> UserError:
    return UserError(
        f"more than {MAX_BRANCHES} subschemas can look at one value of an event",
        fix=f"Use fewer anyOf, allOf, oneOf and $ref for one value (a pattern counts {PATTERN_WEIGHT})",
    )
