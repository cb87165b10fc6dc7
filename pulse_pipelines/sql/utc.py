"""Functions of `TIMESTAMPTZ` columns, computed in UTC without a calendar of time zones.

Every query's zone is UTC, yet DuckDB asks such a calendar, which takes ten times as long as the same function
of a plain `TIMESTAMP`, and for `date_diff` two hundred times. Here calls and casts in a query's parse tree
become calls of macros, among which DuckDB chooses by the types of the arguments. A macro computes with the
plain timestamp; what that cannot express (infinity) it leaves to the function itself. A query that then fails
must be run as it was written, which decides whether it is wrong and what the error says.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import duckdb

from pulse_pipelines.sql.allowed import words

PREFIX = "utc_"
"""Beginning of the macros' names: no function that callers may use has it."""
FAMILIES: Mapping[str, str] = {
    "century day dayofmonth dayofweek dayofyear decade era isodow isoyear millennium month quarter week"
    " weekday weekofyear year yearweek": "DATE INTERVAL TIMESTAMP TIMESTAMPTZ",
    "hour microsecond millisecond minute second": "DATE INTERVAL TIME TIMETZ TIME_NS TIMESTAMP TIMESTAMPTZ",
    "dayname julian last_day monthname": "DATE TIMESTAMP TIMESTAMPTZ",
    "age": "TIMESTAMP TIMESTAMPTZ TIMESTAMP,TIMESTAMP TIMESTAMPTZ,TIMESTAMPTZ",
    "date_diff datediff": (
        "VARCHAR,DATE,DATE VARCHAR,TIME,TIME VARCHAR,TIMESTAMP,TIMESTAMP VARCHAR,TIMESTAMPTZ,TIMESTAMPTZ"
    ),
    "date_part datepart": (
        "VARCHAR,DATE VARCHAR,INTERVAL VARCHAR,TIME VARCHAR,TIMETZ VARCHAR,TIME_NS VARCHAR,TIMESTAMP"
        " VARCHAR,TIMESTAMPTZ"
    ),
    "date_trunc datetrunc": "VARCHAR,DATE VARCHAR,INTERVAL VARCHAR,TIMESTAMP VARCHAR,TIMESTAMPTZ",
    "strftime": "DATE, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS,",
    "time_bucket": (
        "INTERVAL,DATE INTERVAL,DATE,DATE INTERVAL,DATE,INTERVAL INTERVAL,TIMESTAMP"
        " INTERVAL,TIMESTAMP,INTERVAL INTERVAL,TIMESTAMP,TIMESTAMP INTERVAL,TIMESTAMPTZ"
        " INTERVAL,TIMESTAMPTZ,INTERVAL INTERVAL,TIMESTAMPTZ,TIMESTAMPTZ INTERVAL,TIMESTAMPTZ,VARCHAR"
    ),
    "timezone": "INTERVAL,TIMETZ VARCHAR,TIMETZ VARCHAR,TIMESTAMP VARCHAR,TIMESTAMPTZ",
    "+": (
        "DATE,INTERVAL INTERVAL,DATE INTERVAL,INTERVAL INTERVAL,TIME INTERVAL,TIMETZ INTERVAL,TIMESTAMP"
        " INTERVAL,TIMESTAMPTZ TIME,INTERVAL TIMETZ,INTERVAL TIMESTAMP,INTERVAL TIMESTAMPTZ,INTERVAL"
    ),
    "-": (
        "DATE,INTERVAL INTERVAL,INTERVAL TIME,INTERVAL TIMETZ,INTERVAL TIMESTAMP,INTERVAL"
        " TIMESTAMPTZ,INTERVAL"
    ),
}
"""DuckDB's signatures of functions, so that a macro is chosen as the function would be. The type of a format
is left open, since a format must be a constant; operators have only the signatures with an interval."""
VOLATILE = frozenset({"error", "gen_random_uuid", "random", "uuid", "uuidv4", "uuidv7"})
"""Functions that give another value at each call: a macro may call its argument twice."""
_NAMES = frozenset(" ".join(FAMILIES).split()) - {"+", "-"}
_OPERATORS = {"+": "plus", "-": "minus"}
_CASTS = {"DATE": "date", "TIMESTAMP": "timestamp", "VARCHAR": "varchar"}
_CONVERTIBLE = ("TIMESTAMP", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
"""Types that DuckDB would convert to `TIMESTAMPTZ` for a macro that takes nothing closer."""
_ZONED = words("date_trunc datetrunc time_bucket + -")
"""Functions whose results have the type `TIMESTAMPTZ`."""
_FIRST, _LAST = "TIMESTAMPTZ '0001-01-01 00:00:00Z'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999Z'"
_1970 = "TIMESTAMPTZ '1970-01-01 00:00:00Z'"
"""Before it the calendar's difference of two moments is off by a millisecond."""
_MAX_DEPTH = 3  # a macro has its argument twice: an expression doubles with each call within a call
_BARRIERS = frozenset({"STAR", "SUBQUERY", "WINDOW"})  # would be twice what is costly, or becomes several
_NEITHER = words("any_value arg_max arg_min first last max max_by median min min_by mode unnest")
"""Aggregates, whose types DuckDB does not tell when it chooses a macro, and what becomes several rows."""
_INTERVALS = words(
    "to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes"
    " to_months to_quarters to_seconds to_weeks to_years"
)
_ONE_UNIT = re.compile(r"\s*-?\d+\s+[A-Za-z]+\s*")
_PARSED = "SELECT json_serialize_sql(?::VARCHAR)"
_TEXT = "SELECT json_deserialize_sql(?::JSON)"


def create_macros(database: duckdb.DuckDBPyConnection) -> None:
    """Create the macros."""
    for names, signatures in FAMILIES.items():
        for name in names.split():
            overloads = [_overload(name, signature.split(",")) for signature in signatures.split()]
            _create(database, _OPERATORS.get(name, name), overloads)
    for kind, name in _CASTS.items():
        plain, usual = f"{_plain('a0', _FIRST)}::{kind}", f"a0::{kind}"
        if kind == "VARCHAR":
            plain = f"{plain} || '+00'"
        macros = [f"(a0 {source_type}) AS {usual}" for source_type in _CONVERTIBLE]
        zoned = f"(a0 TIMESTAMPTZ) AS coalesce({plain}, {usual})"
        _create(database, name, [zoned, *macros, f"(a0) AS {usual}"])
    pairs = [
        _overload("-", pair, _1970)
        if set(pair) == {"TIMESTAMPTZ"}
        else f"(a0 {pair[0]}, a1 {pair[1]}) AS (a0 - a1)"
        for pair in product(("TIMESTAMPTZ", "TIMESTAMP", "DATE"), repeat=2)
    ]
    _create(database, "difference", [*pairs, "(a0, a1) AS (a0 - a1)"])


def _create(database: duckdb.DuckDBPyConnection, name: str, overloads: list[str]) -> None:
    database.execute(f"CREATE MACRO {PREFIX}{name}{', '.join(overloads)}")


def _overload(name: str, types: Sequence[str], first: str = _FIRST) -> str:
    parameters = [f"a{index}" for index in range(len(types))]
    declared = ", ".join(f"{parameter} {kind}" for parameter, kind in zip(parameters, types, strict=True))
    arguments = [
        _plain(parameter, first) if kind == "TIMESTAMPTZ" else parameter
        for parameter, kind in zip(parameters, types, strict=True)
    ]
    usual, quick = _call(name, parameters), _call(name, arguments)
    if name == "timezone":  # of the zone UTC
        quick = arguments[-1]
    elif name in _ZONED and tuple(types) != ("TIMESTAMPTZ", "TIMESTAMPTZ"):
        quick = f"make_timestamptz(epoch_us({quick}))"
    fast = "TIMESTAMPTZ" in types and "VARCHAR" not in types[2:]
    return f"({declared}) AS {f'coalesce({quick}, {usual})' if fast else usual}"


def _call(name: str, arguments: list[str]) -> str:
    return f"({f' {name} '.join(arguments)})" if name in _OPERATORS else f"{name}({', '.join(arguments)})"


def _plain(argument: str, first: str) -> str:
    """The same instant without a zone; null before `first`, after the year 9999, and of infinity."""
    return f"make_timestamp(CASE WHEN {argument} BETWEEN {first} AND {_LAST} THEN epoch_us({argument}) END)"


@dataclass(frozen=True)
class Rewritten:
    """A query with calls of the macros."""

    text: str
    renamed: bool
    """Whether columns of the result have names other than in the query as it was written."""


def rewrite(parser: duckdb.DuckDBPyConnection, statement: Mapping[str, Any]) -> Rewritten | None:
    """Rewrite a parsed statement, or None if nothing in it becomes faster."""
    if any(str(node.get("function_name")).lower() in VOLATILE for node in objects(statement)):
        return None
    try:
        changed = copy.deepcopy(dict(statement))
        top = changed["node"]
        _rewrite(changed, top)
        if changed == statement:
            return None
        ((text,),) = parser.execute(_TEXT, [json.dumps({"error": False, "statements": [changed]})]).fetchall()
        ((again,),) = parser.execute(_PARSED, [text]).fetchall()
        same = _bare(json.loads(again)["statements"]) == _bare([changed])
    except (RecursionError, duckdb.Error, KeyError):
        return None
    names = [item for item in top.get("select_list", ()) if not item["alias"]]
    originals = [item for item in statement["node"].get("select_list", ()) if not item["alias"]]
    return Rewritten(text, names != originals) if same else None


def _rewrite(node: Any, top: Mapping[str, Any], *, unchanged: bool = False) -> int:
    """Rewrite in place, from the leaves up, all but an `unchanged` node itself: how deep macro calls nest."""
    if isinstance(node, list):
        return max((_rewrite(part, top) for part in node), default=0)
    if not isinstance(node, dict) or node.get("type") in ("PIVOT", "TABLE_FUNCTION"):
        return 0  # columns of a pivot are called as its expressions
    items = node["select_list"] if node.get("type") == "SELECT_NODE" else []
    named = [(item, copy.deepcopy(item)) for item in items if not item["alias"]]
    keep = _is_range(node)
    depth = max((_rewrite(part, top, unchanged=keep) for part in node.values()), default=0)
    for item, original in named:
        if node is not top or any(part.get("class") == "STAR" for part in objects(original)):
            item.clear()  # queries around this one know the column by the name of the expression
            item.update(original)
    call = None if unchanged or depth >= _MAX_DEPTH else _macro_call(node)
    if call is None:
        return depth
    node.clear()
    node.update(call)
    return depth + 1


def _is_range(node: Mapping[str, Any]) -> bool:
    """Whether it compares `date_trunc` with a constant, which DuckDB turns into a range to skip files by."""
    parts = [part for part in node.values() if isinstance(part, dict)]
    return (
        node.get("class") in ("BETWEEN", "COMPARISON")
        and sum(map(_has_column, parts)) == 1
        and any(str(part.get("function_name")).lower() in ("date_trunc", "datetrunc") for part in parts)
    )


def _macro_call(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """The call of a macro that replaces an expression, if there is one."""
    if node.get("class") == "CAST":
        name = None if node["try_cast"] else _CASTS.get(node["cast_type"]["id"])
        arguments = [node["child"]]
    elif node.get("class") == "FUNCTION" and node["schema"] in (
        "",
        "main",
    ):  # "main": of the parser, for EXTRACT
        arguments = node["children"]
        name = _macro_name(str(node["function_name"]).lower(), arguments)
    else:
        return None
    if name is None or not _has_column(arguments) or any(map(_is_barrier, objects(arguments))):
        return None
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": node["alias"],
        "query_location": node["query_location"],
        "function_name": f"{PREFIX}{name}",
        "schema": "",
        "children": arguments,
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "catalog": "",
    }


def _macro_name(name: str, arguments: Sequence[Mapping[str, Any]]) -> str | None:
    if name in _OPERATORS:
        if len(arguments) == 1 or any(map(_is_constant, arguments)):
            return None
        if name == "-" and not any(map(_is_interval, arguments)):
            return "difference"
        sure = any(_is_interval(part, one_unit=name == "-") for part in arguments)
        return _OPERATORS[name] if sure else None
    if name == "time_bucket" and text_of(arguments[-1]) is not None:  # a zone, or a moment
        return None
    if name == "strftime":  # whose %Z is empty for a plain timestamp
        written = text_of(arguments[-1])
        return name if written is not None and "Z" not in written else None
    if name in ("date_part", "datepart"):  # seconds since 1970 are another sum of doubles
        part = text_of(arguments[0])
        return name if part is not None and "epoch" not in part.lower() else None
    if name == "timezone":
        return name if text_of(arguments[0]) == "UTC" else None
    return name if name in _NAMES else None


def _is_interval(node: Mapping[str, Any], *, one_unit: bool = False) -> bool:
    """Whether it is an interval whatever the columns are, of one unit if so asked.

    The calendar subtracts days before months, and the plain timestamp months before days.
    """
    if node.get("class") == "CAST":
        whole = not one_unit or _ONE_UNIT.fullmatch(text_of(node["child"]) or "")
        return node["cast_type"]["id"] == "INTERVAL" and bool(whole)
    return node.get("class") == "FUNCTION" and str(node["function_name"]).lower() in _INTERVALS


def _is_constant(node: Mapping[str, Any]) -> bool:
    return node.get("class") == "CONSTANT"


def _is_barrier(node: Mapping[str, Any]) -> bool:
    return node.get("class") in _BARRIERS or str(node.get("function_name")).lower() in _NEITHER


def _has_column(node: Any) -> bool:
    return any(part.get("class") == "COLUMN_REF" for part in objects(node))


def text_of(node: Mapping[str, Any]) -> str | None:
    """The text of a node, if it is a constant."""
    value = node["value"] if _is_constant(node) else {}
    return str(value["value"]) if value.get("type", {}).get("id") == "VARCHAR" and "value" in value else None


def objects(root: Any) -> Iterator[dict[str, Any]]:
    """Iterate over all objects of a tree."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            yield node
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node


def _bare(node: Any) -> Any:
    """A tree without places in the text."""
    if isinstance(node, list):
        return [_bare(part) for part in node]
    if isinstance(node, dict):
        return {key: _bare(part) for key, part in node.items() if key != "query_location"}
    return node
