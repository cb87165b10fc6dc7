"""Gate for callers' SQL: parses it with DuckDB's own parser, and checks all of it against an allowlist.

The SQL must be a single query. Everything in its parse tree is looked up in `allowed`, and refused if it is
not there, so that no list of dangerous features is needed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from pulse_pipelines.sql import allowed, utc
from pulse_pipelines.sql.utc import Rewritten
from pulse_resources.errors import UserError

MAX_CHARACTERS = 65_536
MAX_TABLES = 20
SERIALIZED = "SELECT json_serialize_sql(?::VARCHAR)"
SYSTEM_VIEWS = "SELECT view_name FROM duckdb_views() WHERE internal"
SYSTEM_SCHEMAS = "SELECT unnest([database_name, schema_name]) FROM duckdb_schemas()"
_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(?=[^\s(])(?!ANALYZE\b)", re.IGNORECASE)
_NANOSECONDS = re.compile(r"%n.", re.DOTALL)
_PIVOT = re.compile(r"\bPIVOT", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ONE_QUERY = "Send one SELECT (or WITH, FROM, VALUES, DESCRIBE, SUMMARIZE), or EXPLAIN before it"
_NAMES = "Name datasets by their slugs alone: GET /v1/datasets lists them"
_TENANT_NAMES = 'Name your own tables namespace.table, a nested namespace in quotes: "outer.inner".table'


@dataclass(frozen=True)
class Query:
    """A checked query, which may run once its tables are resolved."""

    text: str
    """The SQL, without EXPLAIN."""
    explain: bool
    tables: frozenset[str]
    """Names that must be tables: slugs in lower case, and `namespace.table` as written ..."""
    maybe: frozenset[str]
    """... and names of common table expressions, which may also be tables outside of their scope."""
    faster: Rewritten | None = None
    """The SQL with faster functions of time, if it has any; what it cannot answer, `text` does."""


class Gate:
    """Parses in an instance of its own, which cannot open anything."""

    def __init__(self) -> None:
        self._parser = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "enable_external_access": False,
                "lock_configuration": True,
            },
        )
        self._system_views, self._system_schemas = (
            frozenset(str(name).lower() for (name,) in self._parser.execute(query).fetchall())
            for query in (SYSTEM_VIEWS, SYSTEM_SCHEMAS)
        )

    def check(self, sql: str) -> Query:
        """Check the SQL, and find the names in it.

        Raises:
            UserError: it is not a single query, or uses something that callers may not use.
        """
        if len(sql) > MAX_CHARACTERS:
            raise UserError(f"the SQL has {len(sql):,} characters", fix=f"{MAX_CHARACTERS:,} are the most")
        explain = _EXPLAIN.match(sql)
        text = sql[explain.end() :] if explain else sql
        used, defined = set[str](), set[str]()
        statement = self._parsed(text)
        for node in utc.objects(statement):
            _check(node)
            if node.get("type") == "BASE_TABLE":
                used.add(_table(node))
            elif node.get("type") == "RECURSIVE_CTE_NODE":
                defined.add(str(node["cte_name"]))
            defined |= {entry["key"] for entry in node.get("cte_map", {}).get("map", ())}
        self._check_names(used, defined)
        local = {name.lower() for name in defined}
        faster = utc.rewrite(self._parser, statement)
        return Query(text, explain is not None, frozenset(used - local), frozenset(used & local), faster)

    def _parsed(self, text: str) -> Mapping[str, Any]:
        """Parse the only statement. The parser runs nothing, and serialises only queries to JSON."""
        try:
            ((serialized,),) = self._parser.execute(SERIALIZED, [text]).fetchall()
            parsed = json.loads(serialized)  # which knows Infinity: the parser writes 1e400 so
        except RecursionError as error:
            raise UserError("the SQL is nested too deeply", fix="Name parts of it: WITH ...") from error
        except duckdb.Error as error:
            raise UserError(f"the SQL cannot be parsed: {error}", fix=_ONE_QUERY) from error
        if parsed["error"]:
            raise _unread(parsed["error_message"], text)
        statements = parsed["statements"]
        if len(statements) != 1:
            raise UserError(f"the SQL has {len(statements)} statements", fix=_ONE_QUERY)
        only: Mapping[str, Any] = statements[0]
        if only["named_param_map"]:
            raise UserError("the SQL has parameters", fix="Write the values into it")
        return only

    def _check_names(self, used: set[str], defined: set[str]) -> None:
        if len(used) > MAX_TABLES:
            raise UserError(f"the SQL names {len(used)} tables", fix=f"{MAX_TABLES} are the most")
        for name in sorted(defined):
            # Outside of the name's scope DuckDB would look for a file or view of this name.
            if not _PLAIN.fullmatch(name):
                raise UserError(
                    f"{name[:100]!r} is not a name for a part of a query", fix="Use a-z, 0-9 and _"
                )
        for name in sorted(used | {part.lower() for part in defined}):
            namespace = name.rpartition(".")[0].lower()
            if name in self._system_views or namespace in self._system_schemas:
                raise UserError(f"{name[:100]!r} is a table of DuckDB's own", fix=_NAMES)
        spelled: dict[str, str] = {}
        for name in sorted(used):
            # DuckDB does not tell them apart, but the catalog does.
            if spelled.setdefault(name.lower(), name) != name:
                raise UserError(
                    f"{name[:100]!r} is spelled in two ways",
                    fix="Write it as the catalog has it; a query reads one of two that differ by this only",
                )


def _check(node: Mapping[str, Any]) -> None:
    """Raise UserError unless callers may use this kind of node."""
    kind = node.get("type")
    if "class" in node:
        if node["class"] not in allowed.EXPRESSIONS:
            raise _refused(f"an expression of the kind {node['class']}")
        if node["class"] in ("FUNCTION", "WINDOW"):
            _check_function(node)
    elif isinstance(kind, str) and kind not in allowed.NODES and not kind.endswith("_TYPE_INFO"):
        raise _refused(f"a part of the kind {kind}")
    if kind == "SHOW_REF" and (node["show_type"] not in allowed.SHOWN or not node["query"]):
        raise _refused("SHOW")
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()  # must be an allowed function, too
        if name not in allowed.TABLE_FUNCTIONS:
            raise _refused(f"the table function {name[:100]!r}")


def _check_function(node: Mapping[str, Any]) -> None:
    name = str(node["function_name"]).lower()  # in any schema: callers have no functions of their own
    if name not in allowed.FUNCTIONS and name not in allowed.OPERATORS:
        raise _refused(f"the function {name[:100]!r}")
    if name == "strftime":
        _check_format(node["children"])


def _check_format(arguments: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError for a format that DuckDB writes wrongly: after `%n` come bytes of its memory."""
    formats = [text for argument in arguments if (text := utc.text_of(argument)) is not None]
    if not formats:
        raise UserError(
            "the format of strftime is computed", fix="Write it as one text: strftime(timestamp, '%Y-%m-%d')"
        )
    if any(_NANOSECONDS.search(text.replace("%%", "")) for text in formats):
        raise UserError(
            "strftime cannot write anything after %n, the nanoseconds",
            fix="Put %n last, or write microseconds: %f",
        )


def _table(node: Mapping[str, Any]) -> str:
    name = str(node["table_name"])
    namespace = str(node["schema_name"])
    if node["catalog_name"]:
        raise UserError(f"the table {name[:100]!r} is named with more than a namespace", fix=_TENANT_NAMES)
    if not all(map(_PLAIN.fullmatch, (name, *(namespace.split(".") if namespace else ())))):
        raise UserError(f"there is no table {name[:100]!r}", fix=_TENANT_NAMES if namespace else _NAMES)
    if node["at_clause"]:
        raise UserError("AT is not supported", fix="Name the snapshots beside the SQL: `snapshots`")
    return f"{namespace}.{name}" if namespace else name.lower()


def _unread(message: str, text: str) -> UserError:
    if "Only SELECT" not in message:
        return UserError(f"the SQL cannot be parsed: {message}")
    fix = _ONE_QUERY
    if _PIVOT.search(text):
        fix = "Write PIVOT with its values: FROM t PIVOT (sum(x) FOR y IN ('a', 'b'))"
    return UserError("the SQL is not a query that only reads", fix=fix)


def _refused(construct: str) -> UserError:
    return UserError(f"{construct} cannot be used here", fix="docs/sql.md lists what can be used")
