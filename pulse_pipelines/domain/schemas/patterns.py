"""Patterns: regular expressions that match in linear time and bounded memory, and replacements for others.

Look-arounds and back-references cannot, and a compiled pattern may have at most `MAX_COMPILED` bytes. Two
common forms that this would refuse are replaced by equivalent keywords: a count of one character class
becomes a length, and a look-ahead at the beginning a separate condition.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jsonschema_rs

MAX_COMPILED = 131_072
LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_COMPILED, dfa_size_limit=MAX_COMPILED)
"""Limits in bytes of a compiled pattern, and of its cache while matching (by default 2 MiB per pattern)."""

_COUNTED = re.compile(
    r"\^((?:\\[pP]\{[^}]*\}|\\[dDsSwW\W]|\[(?:\\.|[^\\\[\]])+\]|[^\\\[\](){}*+?|^$]))\{(\d{1,9})(?:(,)(\d{0,9}))?\}\$",
    re.DOTALL,
)
"""One character class with a count, anchored at both ends."""
_LOOKAHEADS = {"^(?=": "=", "^(?!": "!"}
_BACKTRACKING = re.compile(r"\(\?<?[=!]|\\[1-9]|\(\?P=|\\k<")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_TOKEN = re.compile(r"(?P<odd>\\[<>]|\\b\{|\[\^?\])|\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escape or a class; `odd`: one that ECMA-262 and this engine do not read alike."""


@lru_cache(maxsize=4096)
def compiles(pattern: str, size: int = MAX_COMPILED) -> bool:
    """Whether a pattern compiles to a linear-time program of at most `size` bytes."""
    options = jsonschema_rs.RegexOptions(size_limit=size)
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)
    except ValueError:
        return False
    return True


def equivalent(pattern: str) -> list[dict[str, Any]] | None:
    """Subschemas that together accept the same as a pattern that does not compile; None if there are none."""
    parts: list[dict[str, Any]] = []
    while (kind := _LOOKAHEADS.get(pattern[:4])) is not None:
        if (end := _closing(pattern, 1)) is None:
            return None
        condition = {"pattern": f"^(?:{pattern[4:end]})"}
        parts.append(condition if kind == "=" else {"not": {"type": "string"} | condition})
        pattern = "^" + pattern[end + 1 :]
        if "|" in _outside(pattern) or pattern[1:2] in ("*", "+", "?", "{"):
            return None
    if counted := _COUNTED.fullmatch(pattern):
        many, least, comma, most = counted.groups()
        parts.append({"pattern": f"^{many}*$", "minLength": int(least)})
        if most or not comma:
            parts.append({"maxLength": int(most or least)})
    elif pattern != "^":
        parts.append({"pattern": pattern})
    return parts if parts != [{"pattern": pattern}] and all(map(compiles, patterns_in(parts))) else None


def patterns_in(parts: list[dict[str, Any]]) -> list[str]:
    """The patterns in the subschemas that `equivalent` returns."""
    return [
        str(schema["pattern"])
        for part in parts
        for schema in (part, part.get("not", {}))
        if "pattern" in schema
    ]


def complaint(pattern: str, *, of_names: bool) -> tuple[str, str] | None:
    """Why a pattern is refused, and what to write instead; None if it is accepted.

    Args:
        of_names: whether it is one of `patternProperties`, which other keywords cannot replace.
    """
    if compiles(pattern) or (not of_names and equivalent(pattern) is not None):
        return None
    if _BACKTRACKING.search(pattern):
        return (
            "looks around or refers back, which can take time without bound",
            "A look-ahead may begin a pattern, as in ^(?!tmp)[a-z]+$; write others as patterns in allOf, "
            'or as {"not": {"pattern": ...}}',
        )
    if _SURROGATE.search(pattern):
        return ("has half of a surrogate pair", r"Write the character itself, or as \u{1F600}")
    if (problem := misread(pattern)) is not None:
        return problem
    if compiles(_COUNT.sub(_uncounted, pattern), 1 << 26):
        return (
            f"takes more than {MAX_COMPILED:,} bytes when it is compiled",
            "Use smaller counts in {}, [0-9A-Za-z_] for \\w, [0-9] for \\d; give lengths by maxLength",
        )
    return "is not a regular expression of ECMA-262", "Try it in a browser's console: new RegExp(..., 'u')"


def _uncounted(count: re.Match[str]) -> str:
    """What takes no more bytes than one of what is counted; a count that none can have stays."""
    least, most = count.groups()
    return count[0] if most and int(most) < int(least) else "*"


def misread(pattern: str) -> tuple[str, str] | None:
    """What ECMA-262 reads in another way than the validator, and what to write instead; None: nothing."""
    odd = next((token["odd"] for token in _TOKEN.finditer(pattern) if token["odd"]), None)
    if odd is None:
        return None
    return (
        f"has {odd}, which engines do not take alike",
        r"Write < and > without a backslash, and [\s\S] for any character",
    )


def _outside(pattern: str) -> str:
    """A pattern without escapes, classes and groups."""
    return "".join(character for _, character, depth in _scanned(pattern) if not depth)


def _closing(pattern: str, opened: int) -> int | None:
    """The index of the parenthesis that closes the group opened at an index."""
    for index, character, depth in _scanned(pattern[opened:]):
        if character == ")" and depth == 1:
            return opened + index
    return None


def _scanned(pattern: str) -> Iterator[tuple[int, str, int]]:
    """Index, character and group depth of all characters that are neither escaped nor in a class."""
    index = depth = 0
    inside = False
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 2
            continue
        if inside:
            inside = character != "]"
        elif character == "[":
            inside = True
        else:
            depth += character == "("
            yield index, character, depth
            depth -= character == ")"
        index += 1
