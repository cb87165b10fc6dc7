"""Check of the tables that Spark's plan of a query reads: the last line of defence."""

import re
from collections.abc import Sequence

from pulse_resources.errors import Terminal

_ANALYZED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized", re.DOTALL)
_NODE = re.compile(r"^[\s:|+-]*'?(\w+)", re.MULTILINE)
_HARMLESS = ("LocalRelation", "OneRowRelation", "CTERelationDef", "CTERelationRef")


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
