"""Checks of queries: against the grammar and, the last line of defence, of the tables that Spark reads."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.optimizer.scope import traverse_scope

from pulse_pipelines.curated import exact_spark
from pulse_pipelines.curated.grammar import FUNCTIONS, NODES, REFUSED
from pulse_resources.errors import Terminal, UserError

_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized", re.DOTALL)
_NODE = re.compile(r"^[\s:|+-]*'?(\w+)", re.MULTILINE)
_HARMLESS = ("LocalRelation", "OneRowRelation", "CTERelationDef", "CTERelationRef")


@dataclass(frozen=True)
class Query:
    """A query that may run."""

    text: str
    """As regenerated from its syntax tree, in Spark SQL."""
    tables: tuple[str, ...]
    """Names without a namespace, in the order in which they come, in small letters."""


def check_query(text: str, of: str, *, only: str | None = None) -> Query:
    """Check a query against the grammar.

    Args:
        of: what it is of, in errors.
        only: the table that it may read; None: any, by a name without a namespace.

    Raises:
        UserError: it is not one SELECT, or contains something that it may not use.
    """
    statements = exact_spark.parsed(text)
    if len(statements) != 1 or not isinstance(statements[0], exp.Select | exp.SetOperation):
        raise UserError("there must be exactly one statement, a SELECT")
    (query,) = statements
    common = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    if only in common:
        raise UserError(f"{only!r} names the day's rows: no other query may have this name")
    tables: dict[str, None] = {}
    for node in query.walk(bfs=False):
        _check_node(node, of)
        if isinstance(node, exp.Table):
            name = node.name.lower()
            if not _is_plain(node) or name not in common | {only or name}:
                raise _foreign(node, of, only)
            if name not in common:
                tables[name] = None
    for scope in traverse_scope(query):
        for source in scope.sources.values():
            if isinstance(source, exp.Table) and source.name.lower() not in tables:
                raise _foreign(source, of, only)  # named as a query is that cannot be seen from there
    return Query(exact_spark.written(query), tuple(tables))


def _is_plain(table: exp.Table) -> bool:
    extra = {key for key, value in table.args.items() if value} - {"this", "alias", "joins", "laterals"}
    return isinstance(table.this, exp.Identifier) and not table.db and not table.catalog and not extra


def _check_node(node: exp.Expr, of: str) -> None:
    if isinstance(node, exp.Table):
        return
    if isinstance(node, exp.Anonymous):
        if node.name.lower() not in FUNCTIONS:
            raise UserError(f"the function {node.name}() may not be used in a {of}")
    elif isinstance(node, REFUSED) or not isinstance(node, NODES):
        raise UserError(f"{type(node).__name__} may not be used in a {of}: {node.sql(dialect='spark')[:100]}")


def _foreign(table: exp.Expr, of: str, only: str | None) -> UserError:
    may = f"{only!r} alone" if only else "datasets by their slugs"
    return UserError(f"the query reads {table.sql(dialect='spark')[:100]}", fix=f"A {of} may read {may}")


def check_reads(plan: str, tables: Sequence[str]) -> None:
    """Check that Spark's plan reads these tables and nothing else.

    Raises:
        Terminal: it reads something else, or the plan cannot be parsed.
    """
    analyzed = _ANALYZED.search(plan)
    if analyzed is None:
        raise Terminal("Spark shows no plan that could be checked")
    for line in analyzed[1].splitlines():
        node = _NODE.match(line)
        reads = node is not None and "Relation" in node[1] and node[1] not in _HARMLESS
        if reads and not (
            node and node[1] == "RelationV2" and line.endswith(tuple(f"] {t}" for t in tables))
        ):
            raise Terminal("the statement would read something else than its datasets", plan=line.strip())
