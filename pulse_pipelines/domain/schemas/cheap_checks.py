"""Guards: rewrites of a schema that put cheap checks before expensive ones, with the same verdicts.

The validator compares any number with each integer of an enum exactly, which is slow for a number with a
large exponent, and fast once the number is known to be an integer in range. Of choices with a discriminator
only the one that the member selects is validated, and patterns that do not match in linear time are replaced
by other keywords.
"""

import copy
from collections.abc import Mapping
from typing import Any

from pulse_pipelines.domain.schemas.discriminators import Union, unions
from pulse_pipelines.domain.schemas.patterns import compiles, equivalent
from pulse_pipelines.domain.schemas.subschemas import Subschema, draft_of, list_of, subschemas

WRITTEN = "x-pulse-written"
"""Annotation of what replaces a pattern: the pattern as its author wrote it, for messages."""
INT64 = range(-(2**63), 2**63)


def guarded(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with guards; an unchanged copy if it needs none."""
    root: dict[str, Any] = dict(document)
    if not unions(root) and not any(guards(node, root) for _, node in subschemas(root)):
        return root
    root = copy.deepcopy(root)
    discriminated = unions(root)
    for _, node in list(subschemas(root)):
        keywords, union = sorted(guards(node, root)), discriminated.pop(id(node), None)
        if isinstance(node, dict) and (keywords or union):
            added = [guard for keyword in keywords for guard in _GUARDS[keyword](node)]
            if union is not None:
                del node[union.keyword]
                added.extend(_one_choice(union))
            node["allOf"] = [*node.get("allOf", ()), *added]  # at the end, so references to others stay valid
    return root


def guards(node: Subschema, root: Mapping[str, Any]) -> frozenset[str]:
    """The keywords of a subschema that get a guard."""
    if "$ref" in node:  # beside it older drafts ignore all others
        return frozenset()
    # In draft 4 a number like 1.0 is not an integer, but equal to one.
    exact = draft_of(root) == 4 and node.get("type") != "integer"
    keywords = {"enum"} if not exact and integers(node.get("enum")) else set()
    if isinstance(pattern := node.get("pattern"), str) and not compiles(pattern) and equivalent(pattern):
        keywords.add("pattern")
    return frozenset(keywords)


def integers(options: Any) -> bool:
    """Whether the options of an enum are two or more 64-bit integers, and possibly null."""
    numbers = [option for option in list_of(options) if option is not None]
    return len(numbers) > 1 and all(type(option) is int and option in INT64 for option in numbers)


def _enum(node: dict[str, Any]) -> list[dict[str, Any]]:
    options = node.pop("enum")
    numbers = [option for option in options if option is not None]
    kinds = ["integer"] if len(numbers) == len(options) else ["integer", "null"]
    limits = {"minimum": min(numbers), "maximum": max(numbers)}
    return [{"allOf": [{"type": kinds}, limits, {"enum": options}]}]


def _pattern(node: dict[str, Any]) -> list[dict[str, Any]]:
    pattern = node.pop("pattern")
    return [part | {WRITTEN: pattern} for part in equivalent(pattern) or []]


def _one_choice(union: Union) -> list[dict[str, Any]]:
    accepted = sorted(frozenset[str]().union(*(choice.values for choice in union.choices)))
    conditions = [{"if": _has(union.member, sorted(v)), "then": schema} for v, schema in union.choices]
    return [{"type": "object"} | _has(union.member, accepted), *conditions]


def _has(member: str, values: list[str]) -> dict[str, Any]:
    return {"required": [member], "properties": {member: {"enum": values}}}


_GUARDS = {"enum": _enum, "pattern": _pattern}
