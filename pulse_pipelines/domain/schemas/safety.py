"""Safety bounds of a schema, beyond the rules of its draft, so that validation stays within bounds.

Nothing is fetched: references outside the document are refused. Everything else in a bundle is bounded here
by counts; the CPU time of an event is bounded by `cost`.
"""

from collections.abc import Mapping
from typing import Any

from pulse_pipelines.domain.schemas.applications import branches
from pulse_pipelines.domain.schemas.bundle import same_draft
from pulse_pipelines.domain.schemas.patterns import complaint, misread
from pulse_pipelines.domain.schemas.subschemas import DYNAMIC, Subschema, dict_of, resolve, subschemas
from pulse_resources.errors import UserError

MAX_PATTERNS = 100
"""Maximum number of distinct patterns: each takes memory when compiled, and again while matching."""
MAX_PATTERN_BYTES = 1_000


def check_bounds(bundle: Mapping[str, Any]) -> None:
    """Refuse a valid schema that exceeds the safety bounds.

    Raises:
        UserError: it refers outside itself, refers dynamically, has parts of another draft, has patterns
            that are too many, too large or backtrack, refers to itself endlessly, or applies too many
            subschemas to one value.
    """
    patterns: set[str] = set()
    for pointer, node in subschemas(bundle):
        _check_addresses(pointer, node, bundle)
        patterns.update(_checked_patterns(pointer, node))
    if len(patterns) > MAX_PATTERNS:
        raise UserError(f"the schema has {len(patterns):,} different patterns, the limit is {MAX_PATTERNS}")
    branches(bundle)


def check_patterns(bundle: Mapping[str, Any]) -> None:
    """Refuse a schema with a pattern that the validator would read in another way than ECMA-262.

    Raises:
        UserError: the first of these patterns, and its place.
    """
    for pointer, node in subschemas(bundle):
        for pattern, _ in _patterns(node):
            if (why := misread(pattern)) is not None:
                raise UserError(f"the pattern {pattern!r} at #{pointer} {why[0]}", fix=why[1])


def _patterns(node: Subschema) -> list[tuple[str, bool]]:
    """Patterns of a subschema, and whether they are of names."""
    patterns = [(str(name), True) for name in dict_of(node.get("patternProperties"))]
    if isinstance(node.get("pattern"), str):
        patterns.append((node["pattern"], False))
    return patterns


def _checked_patterns(pointer: str, node: Subschema) -> list[str]:
    patterns = _patterns(node)
    for pattern, of_names in patterns:
        if len(pattern.encode(errors="replace")) > MAX_PATTERN_BYTES:
            raise UserError(f"a pattern at #{pointer} has more than {MAX_PATTERN_BYTES:,} bytes")
        if (why := complaint(pattern, of_names=of_names)) is not None:
            raise UserError(f"the pattern {pattern!r} at #{pointer} {why[0]}", fix=why[1])
    return [pattern for pattern, _ in patterns]


def _check_addresses(pointer: str, node: Subschema, root: Subschema) -> None:
    for keyword in DYNAMIC:
        if keyword in node:
            raise UserError(f"{keyword} at #{pointer} is not supported", fix="Use $ref")
    if not same_draft(root, node):
        raise UserError(
            f"$schema at #{pointer} names another draft than the schema as a whole",
            fix="A schema has one draft: remove it there, or translate that part",
        )
    reference = node.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise UserError(
            f"a schema may not refer to {reference} (at #{pointer}): only references inside it are allowed",
            fix="Copy it into $defs and refer to it as #/$defs/<name>",
        )
    if isinstance(reference, str) and not isinstance(resolve(reference, root), dict | bool):
        raise UserError(f"nothing is at {reference}: a $ref must lead to a schema")
