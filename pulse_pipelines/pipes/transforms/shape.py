"""Shape of a transform: whether the effect of a change can be computed without the rest, and by which joins.

It can if each row of the result has the id of the row of the FROM dataset that it is of, and depends on
nothing but this row and the rows that joins find for it. A join finds them by an equality of two expressions,
one over the joined dataset and one over a single dataset before it, whose values an index has as texts. What
Spark takes for equal has equal texts: so the rows of the FROM dataset to which a row of a joined one leads in
any of its versions are found by the texts of its values. Everything else is computed whole.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

import sqlglot
from sqlglot import exp

from pulse_pipelines.curated.exact_spark import ExactSpark
from pulse_pipelines.curated.query_check import Query
from pulse_pipelines.domain import entities
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.expressions.compiler import Expression, expression
from pulse_pipelines.domain.expressions.grammar import Call, Literal, Node, Path
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_resources.errors import UserError

ID = "id"
BY_ID = entities.ID
"""The text of the expression that is an entity's id."""
_PARTS = {"expressions", "from_", "joins", "where"}
_WITHIN = {exp.Window: "a window function", exp.Query: "a query within it"}
_MOST_DIGITS = 19
"""Digits of an integer of 64 bits."""
_PLAIN = re.compile(r"[^'\\\x00-\x1f]*")


class Whole(Exception):  # noqa: N818 - an answer, no error
    """The reason why a transform is computed whole."""

    WHEN = "all"

    @property
    def line(self) -> str:
        """A line that says what is computed, and why."""
        return f"{self.WHEN}: {self}"


@dataclass(frozen=True)
class Side:
    """One side of a join's equality."""

    alias: str
    by: Expression
    sql: str
    """Spark SQL of it, over its table by its alias."""


@dataclass(frozen=True)
class Hop:
    """A join: the rows of the dataset `on.alias` whose value is that of a row before, `to.alias`."""

    on: Side
    to: Side


@dataclass(frozen=True)
class Shape:
    """The tables of a transform, in the order of its joins."""

    slugs: Mapping[str, str]
    """By alias; the first is that of the FROM dataset."""
    hops: tuple[Hop, ...]
    """One for each alias but the first."""
    text: str
    """The query, in which each dataset is called what `name_of` says."""

    def name_of(self, alias: str) -> str:
        """What the query calls the rows that it reads of an alias; no dataset is called so."""
        return f"_{list(self.slugs).index(alias)}"

    @property
    def indexes(self) -> list[tuple[str, str]]:
        """Datasets, and expressions by which they have to have an index."""
        sides = [side for hop in self.hops for side in (hop.to, hop.on) if side.by.text != BY_ID]
        return list(dict.fromkeys((self.slugs[side.alias], side.by.text) for side in sides))

    def __str__(self) -> str:
        by = " and ".join(f"{slug} by {text}" for slug, text in self.indexes)
        return "what changes lead to" + (f", found by the index of {by}" if by else "")


def shape_of(query: Query, datasets: Mapping[str, Dataset]) -> Shape:
    """The shape of a checked query.

    Args:
        datasets: by their slugs, all that it reads.

    Raises:
        Whole: the transform has to be computed whole.
    """
    tree = sqlglot.parse_one(query.text, dialect=ExactSpark)
    if not isinstance(tree, exp.Select):
        raise Whole("it combines queries")
    for clause, value in tree.args.items():
        if value and clause not in _PARTS:
            raise Whole(f"it has {'GROUP BY' if clause == 'group' else clause.strip('_').upper()}")
    for kind, description in _WITHIN.items():
        if any(node is not tree for node in tree.find_all(kind)):
            raise Whole(f"it has {description}")
    joins: list[exp.Join] = tree.args.get("joins") or []
    tables = [tree.args["from_"].this, *(join.this for join in joins)]
    named: dict[str, Dataset] = {}
    for table in tables:
        if not isinstance(table, exp.Table) or table.args.get("joins"):
            raise Whole("it reads something else than datasets")
        named[table.alias_or_name.lower()] = datasets[table.name.lower()]
    if len(named) < len(tables):
        raise Whole("two of its datasets have one name")
    reader = _Reader(named)
    if not reader.has_id(tree.expressions):
        raise Whole(f"its id is not that of {tables[0].alias_or_name}, by this name")
    hops = tuple(reader.hop(join, alias) for join, alias in zip(joins, list(named)[1:], strict=True))
    for number, table in enumerate(tables):
        alias = exp.to_identifier(table.alias_or_name, quoted=True)
        table.replace(exp.Table(this=exp.to_identifier(f"_{number}"), alias=exp.TableAlias(this=alias)))
    slugs = {alias: dataset.slug for alias, dataset in named.items()}
    return Shape(slugs, hops, tree.sql(dialect=ExactSpark))


class _Reader:
    """Reads expressions over tables, by their aliases in small letters."""

    def __init__(self, named: Mapping[str, Dataset]) -> None:
        self._named = named

    def has_id(self, projected: list[exp.Expr]) -> bool:
        """Whether what is projected has the id of the first table as its id, and no other."""
        first, matches = next(iter(self._named)), 0
        for projection in projected:
            column = projection.this if isinstance(projection, exp.Alias) else projection
            if projection.is_star:
                matches += self._is_all_of(projection, first)
            elif projection.alias_or_name.lower() == ID:
                if not isinstance(column, exp.Column) or self._place(column) != (first, [ID]):
                    return False
                matches += 1
        return matches == 1

    def _is_all_of(self, star: exp.Expr, alias: str) -> bool:
        if isinstance(star, exp.Column):
            return star.table.lower() == alias and star.this == exp.Star()
        return len(self._named) == 1 and star == exp.Star()

    def hop(self, join: exp.Join, alias: str) -> Hop:
        """The first equality of a join that leads from one table before it to its own. Raises Whole."""
        text = join.sql(dialect=ExactSpark)[:80]
        kind = {join.args.get(condition) or "" for condition in ("side", "kind", "method")} - {""}
        if not kind <= {"LEFT", "OUTER", "INNER"} or not join.args.get("on"):
            raise Whole(f"not by an equality of two columns, or neither inner nor left: {text}")
        before = set(takewhile(lambda condition: condition != alias, self._named))
        for condition in _conditions(join.args["on"]):
            if not isinstance(condition, exp.EQ):
                continue
            sides = [self._side(side) for side in (condition.this, condition.expression)]
            for one, other in (sides, sides[::-1]):
                joins = one and other and one.alias == alias and other.alias in before
                if one and other and joins and one.by.kind is other.by.kind:
                    return Hop(one, other)
        raise Whole(f"not by an equality that an index knows: {text}")

    def _side(self, side: exp.Expr) -> Side | None:
        """A side of an equality, if it is an expression over one table that an index can be by."""
        aliases = {place and place[0] for place in map(self._place, side.find_all(exp.Column))}
        if len(aliases) != 1 or (alias := aliases.pop()) is None:
            return None
        try:
            by = self._compiled(self._node(side), alias)
        except UserError:
            return None
        return Side(alias, by, side.sql(dialect=ExactSpark))

    def _compiled(self, node: Node, alias: str) -> Expression:
        return expression(str(node), self._named[alias].columns)

    def _node(self, of: exp.Expr) -> Node:
        """What Spark and an index compute alike. Raises UserError: anything else."""
        match of:
            case exp.Paren():
                return self._node(of.this)
            case exp.Column():
                return self._path(of)
            case exp.Literal() if (of.is_int and len(of.name) <= _MOST_DIGITS) or (
                of.is_string and _PLAIN.fullmatch(of.name)
            ):
                return Literal(of.name if of.is_string else int(of.name))
            case exp.Concat():
                return Call("concat", tuple(map(self._node, of.expressions)))
            case exp.DPipe():
                return Call("concat", (self._node(of.this), self._node(of.expression)))
            case exp.Coalesce():
                return Call("coalesce", (self._node(of.this), *map(self._node, of.expressions)))
            case exp.Cast() if of.to.this == exp.DataType.Type.TEXT and isinstance(of.this, exp.Column):
                node, place = self._node(of.this), self._place(of.this)
                text = place and self._compiled(node, place[0]).kind is Kind.STRING
                return node if text else Call("concat", (node, Literal("")))
        raise UserError("an index is by something simpler")

    def _path(self, column: exp.Column) -> Path:
        """The property of a column, whose name Spark reads without regard to capitals."""
        alias, (name, *members) = self._place(column) or ("", [""])
        fields = {column.name.lower(): column.field for column in self._named[alias].columns} | {ID: BY_ID}
        return Path((fields[name], *members))

    def _place(self, column: exp.Column) -> tuple[str, list[str]] | None:
        """The table of a column, and its name with those of members in it; None: that is not certain."""
        names = [part.name for part in column.parts]
        if (alias := names[0].lower()) in self._named and len(names) > 1:
            of, names = [alias], names[1:]
        else:
            of = [alias for alias in self._named if self._columns(alias).count(names[0].lower())]
        if len(of) != 1 or self._columns(of[0]).count(names[0].lower()) != 1:
            return None
        return of[0], [names[0].lower(), *names[1:]]

    def _columns(self, alias: str) -> list[str]:
        return [ID, *(column.name.lower() for column in self._named[alias].columns)]


def _conditions(on: exp.Expr) -> Iterator[exp.Expr]:
    """Conditions that all have to hold."""
    on = on.unnest()
    if isinstance(on, exp.And):
        yield from _conditions(on.this)
        yield from _conditions(on.expression)
    else:
        yield on
