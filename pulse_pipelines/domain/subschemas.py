"""The subschemas of a JSON Schema: where the keywords of every accepted draft expect one."""

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
MAPS = (*IN_PLACE_MAPS, "properties", "patternProperties", "$defs", "definitions")

Node = Mapping[str, Any]


def subschemas(node: Any, pointer: str = "") -> Iterator[tuple[str, Node]]:
    """Every subschema that is an object, with its JSON pointer, the node itself first."""
    if not isinstance(node, dict):
        return
    yield pointer, node
    for keyword in SINGLE:
        yield from subschemas(node.get(keyword), f"{pointer}/{keyword}")
    for keyword in LISTS:
        for index, item in enumerate(list_of(node.get(keyword))):
            yield from subschemas(item, f"{pointer}/{keyword}/{index}")
    for keyword in MAPS:
        for name, member in dict_of(node.get(keyword)).items():
            yield from subschemas(member, f"{pointer}/{keyword}/{_escaped(name)}")


def resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """What a JSON pointer reference (`#`, `#/...`) refers to in its document; None when that is nothing."""
    node: Any = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, dict) and key in node:
            node = node[key]
        else:
            return None
    return node


def objects(values: Iterable[Any]) -> Iterator[Node]:
    """Those of the values that are objects."""
    return (value for value in values if isinstance(value, dict))


def dict_of(value: Any) -> dict[str, Any]:
    """The value, if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """The value, if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
