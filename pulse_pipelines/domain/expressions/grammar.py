"""The grammar of expressions (see `compiler`): text to a tree, and a tree to its canonical text."""

import re
from dataclasses import dataclass
from typing import NoReturn

from pulse_pipelines.domain import json_values
from pulse_resources.errors import UserError

MAX_LENGTH = 500
MAX_PARTS = 32
FUNCTIONS = ("concat", "lower", "coalesce", "year", "month", "day", "date")
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?))
    |'(?P<text>(?:[^']|'')*)'
    |(?P<path>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    |(?P<sign><=|<>|>=|[=<>(),]))""",
    re.VERBOSE,
)
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Path:
    names: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.names)


@dataclass(frozen=True)
class Literal:
    value: str | int | float | bool

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return "'{}'".format(self.value.replace("'", "''"))
        return str(self.value).lower() if isinstance(self.value, bool) else repr(self.value)


@dataclass(frozen=True)
class Call:
    """A function by its name, or a comparison by its sign."""

    name: str
    of: "tuple[Node, ...]"

    def __str__(self) -> str:
        if self.name in _COMPARISONS:
            return f"({self.of[0]} {self.name} {self.of[1]})"
        return f"{self.name}({', '.join(map(str, self.of))})"


Node = Path | Literal | Call


def parsed(text: str) -> Node:
    """Read an expression. Raises UserError."""
    reader = _Reader(text)
    node = reader.whole()
    if reader.at < len(text.rstrip()):
        reader.fail("an end")
    return node


def prefix(text: str) -> tuple[Node, str]:
    """Read an expression up to the `=` after it; returns it and the text that follows. Raises UserError."""
    reader = _Reader(text)
    node = reader.whole()
    reader.take("=")
    return node, text[reader.at :]


def _double(text: str) -> float:
    """The double that a number with a fraction or an exponent is. Raises UserError: none is."""
    number = json_values.rounded(text)
    if isinstance(number, json_values.Number):
        raise UserError(
            f"{text} would be compared as {float(number)!r}",
            fix="Write up to 15 digits, below 1.8e308: numbers with a fraction are doubles",
        )
    return number


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._parts, self.at = text, 0, 0

    def whole(self) -> Node:
        """Read an expression, within the limits."""
        node = self.node()
        self._limit(self.at)
        return node

    def node(self) -> Node:
        """Read an expression, or a part of one."""
        self._parts += 1
        self._limit(self.at)
        token = self._next()
        if token is None:
            self.fail("a property, a value or a function")
        self._limit(self.at)
        if (number := token["number"]) is not None:
            return Literal(_double(number) if token["fraction"] else int(number))
        if (text := token["text"]) is not None:
            return Literal(text.replace("''", "'"))
        if (path := token["path"]) is not None:
            if path in FUNCTIONS and self._sees("("):
                return Call(path, self._several())
            return Literal(path == "true") if path in ("true", "false") else Path(tuple(path.split(".")))
        if token["sign"] != "(":
            self.at = token.start()
            self.fail("a property, a value or a function")
        lhs = self.node()
        sign = self._next()
        if sign is None or sign["sign"] not in _COMPARISONS:
            self.at = sign.start() if sign else self.at
            self.fail("a comparison")
        rhs = self.node()
        self.take(")")
        return Call(sign["sign"], (lhs, rhs))

    def take(self, sign: str) -> None:
        """Read a sign that has to be there."""
        if not self._sees(sign):
            self.fail(repr(sign))

    def fail(self, expected: str) -> NoReturn:
        """Raise the error of a text that is not what the grammar has here."""
        raise UserError(
            f"the expression is not complete: {expected} was expected at {self._text[self.at :][:40]!r}",
            fix="Write a property (address.city), a function of such (lower(name)), or a comparison in "
            "parentheses ((people >= 1000))",
        )

    def _limit(self, length: int) -> None:
        if length > MAX_LENGTH or self._parts > MAX_PARTS:
            raise UserError(
                f"the expression has more than {MAX_LENGTH} characters or {MAX_PARTS} parts",
                fix="Index by something simpler",
            )

    def _several(self) -> tuple[Node, ...]:
        nodes = [self.node()]
        while self._sees(","):
            nodes.append(self.node())
        self.take(")")
        return tuple(nodes)

    def _next(self) -> "re.Match[str] | None":
        token = _TOKEN.match(self._text, self.at)
        if token is not None:
            self.at = token.end()
        return token

    def _sees(self, sign: str) -> bool:
        token = _TOKEN.match(self._text, self.at)
        if token is None or token["sign"] != sign:
            return False
        self.at = token.end()
        return True
