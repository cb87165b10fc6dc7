"""Expressions by which entities are indexed: a closed set of functions that give one value per version.

An expression is evaluated twice: in Python, where versions land, and as SQL of DuckDB, where rows are read.
Both give the same (tests/domain/test_expressions.py). A value is text: that of a string as it is, an integer
in decimal, `true` or `false`, a date as `2026-11-25`. Null is not a value: the entity is in no subset.

    expression = path | literal | function "(" expression { "," expression } ")"
               | "(" expression comparison expression ")"
    path       = "_id" | property { "." property }
    literal    = "'" text "'" (a quote in it is doubled) | number | "true" | "false"
    function   = "concat" | "lower" | "coalesce" | "year" | "month" | "day" | "date"
    comparison = "=" | "<>" | "<" | "<=" | ">" | ">="
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from pulse_pipelines.domain.entities import ID
from pulse_pipelines.domain.event import Rejected, parse_timestamp
from pulse_pipelines.domain.expressions import values
from pulse_pipelines.domain.expressions.grammar import Call, Literal, Node, Path, parsed, prefix
from pulse_pipelines.domain.expressions.values import Evaluator, Row
from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.domain.schemas.columns import Column, FieldType, Kind
from pulse_resources.errors import UserError, meant

KEYS = (Kind.STRING, Kind.LONG, Kind.BOOLEAN, Kind.DATE)
"""Kinds of values that have one text. A double has several; of timestamps hardly two are equal."""
LONGS = range(-(2**63), 2**63)
_BEYOND_MICROSECONDS = re.compile(r"\.\d{6}\d*[1-9]")
_SMALL_SQL = f"translate({{}}, '{values.CAPITALS}', '{values.CAPITALS.translate(values.SMALL)}')"
_VALUES = {
    Kind.STRING: re.compile(r".*", re.DOTALL),
    Kind.LONG: re.compile(r"0|-?[1-9][0-9]{0,18}"),
    Kind.BOOLEAN: re.compile(r"true|false"),
    Kind.DATE: re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
}


@dataclass(frozen=True)
class Expression:
    """An expression over the columns of a dataset."""

    text: str
    """In canonical form: two that say the same differ in nothing."""
    kind: Kind
    columns: frozenset[str]
    """Names of the columns that it reads."""
    sql: str
    """Its value's text, or NULL, in the SQL of DuckDB."""
    value: Evaluator

    def of(self, row: Row) -> str | None:
        """The text of its value for a row of its columns; None: no value."""
        return values.text_of(self.value(row))


@dataclass(frozen=True)
class Subset:
    """The entities for which an expression has a value."""

    expression: Expression
    value: str

    @property
    def sql(self) -> str:
        """The condition that a row's entity is in it, in the SQL of DuckDB."""
        return f"{self.expression.sql} = {_quoted(self.value)}"


def expression(text: str, columns: Iterable[Column]) -> Expression:
    """Read an expression over the columns of a dataset. Raises UserError, which says where it is wrong."""
    return _expression(parsed(text), columns)


def subset(text: str, columns: Iterable[Column]) -> Subset:
    """Read `<expression>=<value>`: all that follows the sign is the value. Raises UserError."""
    node, value = prefix(text)
    expression = _expression(node, columns)
    if not _VALUES[expression.kind].fullmatch(value):
        raise UserError(
            f"{value!r} is not a value of {expression.text}, which is a {expression.kind.value}",
            fix="Write an integer without sign and zeros before it, true or false, a date as 2026-11-25",
        )
    return Subset(expression, value)


def _expression(node: Node, columns: Iterable[Column]) -> Expression:
    compiler = _Compiler({column.field: column for column in columns})
    part = compiler.part(node)
    if part.kind not in KEYS:
        raise UserError(
            f"{node} is a {part.kind.value}, of which hardly two are equal",
            fix="Take a part of it, such as date(...), or compare it: (area >= 1000)",
        )
    return Expression(str(node), part.kind, frozenset(compiler.columns), part.text, part.value)


@dataclass(frozen=True)
class _Part:
    """A part of an expression, compiled."""

    kind: Kind
    sql: str
    value: Evaluator

    @property
    def text(self) -> str:
        return self.sql if self.kind is Kind.STRING else f"CAST({self.sql} AS VARCHAR)"


class _Compiler:
    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self.columns: set[str] = set()

    def part(self, node: Node) -> _Part:
        match node:
            case Path():
                return self._path(node)
            case Literal():
                return _literal(node)
        if node.name in values.SIGNS:
            return self._comparison(node)
        parts = [self.part(operand) for operand in node.of]
        part_values = [part.value for part in parts]
        match node.name:
            case "concat":
                _only(node, parts, KEYS, least=2)
                return _Part(
                    Kind.STRING, f"({' || '.join(p.text for p in parts)})", values.concatenated(part_values)
                )
            case "lower":
                _only(node, parts, (Kind.STRING,), most=1)
                return _Part(Kind.STRING, _SMALL_SQL.format(parts[0].sql), values.small(part_values[0]))
            case "coalesce":
                _only(node, parts, (parts[0].kind,), least=2)
                first = f"coalesce({', '.join(p.sql for p in parts)})"
                return _Part(parts[0].kind, first, values.first(part_values))
        _only(node, parts, (Kind.DATE, Kind.TIMESTAMP), most=1)
        at = _utc(parts[0])
        if node.name == "date":
            return _Part(Kind.DATE, f"CAST({at} AS DATE)", values.date_of(part_values[0]))
        return _Part(
            Kind.LONG, f"{node.name}({at})", values.date_part(values.PARTS[node.name], part_values[0])
        )

    def _path(self, node: Path) -> _Part:
        first, *members = node.names
        if node.names == (ID,):
            column = Column(ID, "id", FieldType(Kind.STRING))
        elif first in self._columns:
            column = self._columns[first]
        else:
            raise UserError(
                f"the schema declares no property {first!r} that has a column",
                fix=meant(first, [ID, *self._columns]),
            )
        self.columns.add(column.name)
        kind, sql, path = column.type, f'"{column.name}"', [column.name]
        for name in members:
            inner = dict(kind.fields) if kind.kind is Kind.STRUCT else {}
            if name not in inner:
                raise UserError(f"{node}: there is no {name!r} in it", fix=meant(name, inner))
            kind, sql = inner[name], f"struct_extract({sql}, '{name}')"
            path.append(name)
        if kind.kind in (Kind.STRUCT, Kind.LIST, Kind.JSON):
            raise UserError(f"{node} is {kind}, which is not one value", fix="Name a property with one value")
        if kind.kind is Kind.DOUBLE:
            return _Part(kind.kind, f"nullif({sql}, 'nan'::DOUBLE)", values.number(values.property_at(path)))
        return _Part(kind.kind, sql, values.property_at(path))

    def _comparison(self, node: Call) -> _Part:
        parts = [self.part(operand) for operand in node.of]
        for position, (place, other) in enumerate(zip((1, 0), reversed(parts), strict=True)):
            if isinstance(node.of[position], Literal) and not isinstance(node.of[place], Literal):
                parts[position] = _as_kind(node.of[position], parts[position], other.kind)
        lhs, rhs = parts
        if lhs.kind is not rhs.kind:
            raise UserError(
                f"{node} compares a {lhs.kind.value} with a {rhs.kind.value}", fix="Compare like with like"
            )
        sql = f"({lhs.sql} {node.name} {rhs.sql})"
        return _Part(Kind.BOOLEAN, sql, values.compared(values.SIGNS[node.name], lhs.value, rhs.value))


def _only(
    node: Call, parts: list[_Part], kinds: tuple[Kind, ...], *, least: int = 1, most: int | None = None
) -> None:
    if not least <= len(parts) <= (most or len(parts)):
        raise UserError(f"{node}: {node.name} takes {most or f'{least} or more'}, and has {len(parts)}")
    for part, argument in zip(parts, node.of, strict=True):
        if part.kind not in kinds:
            names = " or ".join(kind.value for kind in kinds)
            raise UserError(
                f"{node}: {argument} is a {part.kind.value}, and {node.name} takes a {names} there"
            )


def _literal(node: Literal) -> _Part:
    value = node.value
    if isinstance(value, bool):
        return _Part(Kind.BOOLEAN, str(value).lower(), lambda row: value)
    if isinstance(value, str):
        return _Part(Kind.STRING, _quoted(value), lambda row: value)
    if isinstance(value, float):
        return _Part(Kind.DOUBLE, f"'{value!r}'::DOUBLE", lambda row: value)
    if value not in LONGS:
        raise UserError(f"{node} is beyond 64 bits", fix="Compare with a smaller number")
    return _Part(Kind.LONG, f"({value})::BIGINT", lambda row: value)


def _as_kind(node: Node, part: _Part, target: Kind) -> _Part:
    """A literal as a value of the kind that it is compared with, where it can be one."""
    value = part.value({})
    if target is Kind.DOUBLE and part.kind is Kind.LONG:
        if float(value) != value:
            raise UserError(
                f"{node} would be compared as {float(value)!r}",
                fix="Write a number that a double holds, as all up to 2^53",
            )
        return _literal(Literal(float(value)))
    if target is Kind.DATE and part.kind is Kind.STRING:
        try:
            day = date.fromisoformat(value)
        except ValueError as error:
            raise UserError(f"{node} is not a date", fix="Write it like '2026-11-25'") from error
        return _Part(Kind.DATE, f"DATE '{day.isoformat()}'", lambda row: day)
    if target is Kind.TIMESTAMP and part.kind is Kind.STRING:
        at = parse_timestamp(value)
        if isinstance(at, Rejected):
            raise UserError(f"{node} is not a timestamp", fix="Write it like '2026-11-25T10:00:00Z'")
        if _BEYOND_MICROSECONDS.search(value):
            raise UserError(f"{node} has more than microseconds", fix="Write up to 6 digits of a second")
        micros = (at - EPOCH) // timedelta(microseconds=1)
        return _Part(Kind.TIMESTAMP, f"make_timestamptz(({micros})::BIGINT)", lambda row: at)
    return part


def _utc(part: _Part) -> str:
    # A timestamp with zone has the parts of the session's zone; without one, those that it shows.
    return f"make_timestamp(epoch_us({part.sql}))" if part.kind is Kind.TIMESTAMP else part.sql


def _quoted(text: str) -> str:
    parts = ["'{}'".format(part.replace("'", "''")) for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"  # NUL ends a query's text
