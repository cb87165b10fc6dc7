"""Guards: cheap checks before dear ones, so that honest schemas are judged fast by whatever event comes.

The validator compares any number with each integer of an enum exactly, which takes long where the number has
a large exponent, and looks for equal items before it looks at what the items are. Neither matters once the
number is known to be an integer in range, and the items to be strings: verdicts stay the same.
"""

import copy
from collections.abc import Mapping
from typing import Any

from pulse_pipelines.domain.subschemas import Node, dict_of, list_of, subschemas

INT64 = range(-(2**63), 2**63)


def guarded(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with guards; the very same where it needs none."""
    root: dict[str, Any] = dict(document)
    if not any(guards(node, root) for _, node in subschemas(root)):
        return root
    root = copy.deepcopy(root)
    for _, node in list(subschemas(root)):
        wanted = sorted(guards(node, root))
        if wanted and isinstance(node, dict):
            added = [_GUARDS[keyword](node) for keyword in wanted]
            node["allOf"] = [*node.get("allOf", ()), *added]  # at the end: references to the others hold
    return root


def guards(node: Node, root: Mapping[str, Any]) -> frozenset[str]:
    """The keywords of a subschema that get a guard."""
    if "$ref" in node:  # beside it older drafts ignore all others
        return frozenset()
    # To draft 4 a number like 1.0 is no integer, and yet equal to one.
    exact = "draft-04" in str(root.get("$schema")) and node.get("type") != "integer"
    found = {"enum"} if not exact and integers(node.get("enum")) else set()
    if node.get("uniqueItems") is True and plain_items(node) is not None:
        found.add("uniqueItems")
    return frozenset(found)


def integers(options: Any) -> bool:
    """Whether the options of an enum are several integers of 64 bits, and possibly null."""
    found = [option for option in list_of(options) if option is not None]
    return len(found) > 1 and all(type(option) is int and option in INT64 for option in found)


def plain_items(node: Node) -> str | None:
    """Which kind an array's items are: "string" or "integer", if there are those; None for any others."""
    items = dict_of(node.get("items"))
    declared = items.get("type")
    types = {declared} if isinstance(declared, str) else set(map(str, list_of(declared)))
    if (
        not types
        or types - {"string", "integer", "boolean", "null"}
        or {"$ref", "prefixItems"} & {*items, *node}
    ):
        return None
    return "integer" if "integer" in types else "string"


def _enum(node: dict[str, Any]) -> dict[str, Any]:
    options = node.pop("enum")
    found = [option for option in options if option is not None]
    kinds = ["integer"] if len(found) == len(options) else ["integer", "null"]
    limits = {"minimum": min(found), "maximum": max(found)}
    return {"allOf": [{"type": kinds}, limits, {"enum": options}]}


def _unique(node: dict[str, Any]) -> dict[str, Any]:
    del node["uniqueItems"]
    return {"allOf": [{"items": {"type": node["items"]["type"]}}, {"uniqueItems": True}]}


_GUARDS = {"enum": _enum, "uniqueItems": _unique}
