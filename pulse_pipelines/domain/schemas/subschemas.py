"""Traversal of the subschemas of a JSON Schema, by the keywords of all accepted drafts."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

IN_PLACE = ("not", "if", "then", "else")
IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
ANY_MEMBER = ("propertyNames", "unevaluatedProperties")
ANY_ITEM = ("contains", "unevaluatedItems")
SINGLE = (*IN_PLACE, *ANY_MEMBER, *ANY_ITEM, "additionalProperties", "additionalItems", "items")
LISTS = (*IN_PLACE_LISTS, "prefixItems", "items")
DEFINITIONS = ("$defs", "definitions")
MAPS = (*IN_PLACE_MAPS, "properties", "patternProperties", *DEFINITIONS)
_SINGLE, _LISTS, _MAPS = frozenset(SINGLE), frozenset(LISTS), frozenset(MAPS)
DYNAMIC = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")

Subschema = Mapping[str, Any]


def subschemas(node: Any, pointer: str = "") -> Iterator[tuple[str, Subschema]]:
    """All subschemas that are objects, with their JSON pointers, the node itself first."""
    if not isinstance(node, dict):
        return
    yield pointer, node
    for below, child in children(node):
        yield from subschemas(child, pointer + below)


def children(node: Subschema) -> Iterator[tuple[str, Subschema]]:
    """The direct subschemas of a node, with relative pointers."""
    for keyword, value in node.items():
        if isinstance(value, dict):
            if keyword in _SINGLE:
                yield f"/{keyword}", value
            elif keyword in _MAPS:
                for name, child in value.items():
                    if isinstance(child, dict):
                        yield f"/{keyword}/{escaped(name)}", child
        elif isinstance(value, list) and keyword in _LISTS:
            for index, child in enumerate(value):
                if isinstance(child, dict):
                    yield f"/{keyword}/{index}", child


def resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """The target of a reference (`#`, `#/...`) or JSON pointer in its document; None if there is none."""
    node: Any = root
    first, *parts = unquote(reference).split("/")
    if first not in ("#", ""):  # an anchor
        return None
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return None
    return node


def draft_of(root: Subschema) -> int:
    """The draft of a document: 4, 6, 7, 2019 or 2020."""
    match = re.search(r"draft[-/]0*(\d+)", str(root.get("$schema")))
    return int(match[1]) if match else 2020


def address_keyword(root: Subschema) -> str:
    """The keyword for a subschema's address in the document's draft."""
    return "id" if draft_of(root) == 4 else "$id"


def objects(values: Iterable[Any]) -> Iterator[Subschema]:
    """Those of the values that are objects."""
    return (value for value in values if isinstance(value, dict))


def dict_of(value: Any) -> dict[str, Any]:
    """The value, if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """The value, if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def escaped(name: str) -> str:
    """A name escaped for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
