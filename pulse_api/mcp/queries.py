"""MCP tools that run a query: the caller's SQL, or a measure."""

import asyncio
import re
from decimal import Decimal
from typing import Any

from pulse_api.mcp.arguments import ExplainArguments, MeasureArguments, QueryArguments
from pulse_api.mcp.session import Answer, Session
from pulse_pipelines.ask import meaning, plan, record, write
from pulse_pipelines.ask.meaning import Field, Meaning
from pulse_pipelines.ask.plan import Condition, Grain, Measure, Plan, Span, Value
from pulse_pipelines.ask.read import QueryResult
from pulse_pipelines.domain.json_values import with_text_ids
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_pipelines.sql.pinned import Travel
from pulse_resources.errors import UserError, meant

_NUMBER = re.compile(r"-?[0-9]{1,19}(?:\.[0-9]{1,19})?")
"""A number of up to 38 digits, which DuckDB compares exactly with an integer."""


async def query(session: Session, arguments: QueryArguments) -> Answer:
    """A page of a query's result."""
    result = await session.query(arguments.sql, Travel(dict(arguments.snapshots)))
    return await _page(session, result, arguments.sql, arguments.offset, arguments.limit)


async def explain(session: Session, arguments: ExplainArguments) -> Answer:
    """The plan of a query, which reads nothing."""
    result = await session.query(f"EXPLAIN {arguments.sql}")
    plan_of_it = "\n".join(str(row["explain_value"]) for row in result.rows)
    return Answer(await read(session, result) | {"plan": plan_of_it})


async def measure(session: Session, arguments: MeasureArguments) -> Answer:
    """A page of measures by dimensions, in order, by a query that Pulse writes."""
    layer = await asyncio.to_thread(meaning.find_meaning, session.tenant, arguments.dataset)
    requested = _plan(layer, arguments)
    sql = write.sql(requested)
    result = await session.query(sql, Travel(dict(arguments.snapshots)))
    answer = await _page(session, result, sql, arguments.offset, arguments.limit)
    return Answer(dict(answer.facts) | {"understood": plan.in_words(requested)}, answer.untrusted)


async def _page(session: Session, result: QueryResult, sql: str, offset: int, limit: int) -> Answer:
    rows = list(result.rows[offset : offset + limit])
    pinned = with_text_ids(
        {"snapshots": {name: snapshot for name, snapshot in result.snapshots.items() if snapshot is not None}}
    )
    more = offset + limit < len(result.rows)
    facts = await read(session, result) | {
        "sql": sql,
        "rows_in_all": len(result.rows),
        "next": pinned | {"offset": offset + limit} if more else None,
    }
    return Answer(facts, {"columns": list(result.columns), "rows": rows})


async def read(session: Session, result: QueryResult) -> dict[str, Any]:
    """The tables that a query has read: their snapshots, and when events landed in them last."""
    freshness = await asyncio.to_thread(record.freshness, session.tenant, list(result.snapshots))
    return with_text_ids({"query_id": result.query_id, "snapshots": result.snapshots, "freshness": freshness})


def _plan(layer: Meaning, arguments: MeasureArguments) -> Plan:
    measures = []
    for requested in arguments.measures:
        if requested.column is None and requested.aggregation != "count":
            raise UserError(f"{requested.aggregation} needs a column", fix="Name one of describe_dataset")
        field = _field(layer, requested.column) if requested.column else None
        numbers = requested.aggregation in ("sum", "avg", "median", "stddev", "p90", "p95", "p99")
        if field and numbers and field.kind not in (Kind.LONG, Kind.DOUBLE):
            raise UserError(f"{field.name} is not a number", fix="Use count, count_distinct, min or max")
        if field and requested.aggregation == "count":
            raise UserError(
                "count takes no column: it counts rows", fix="Leave out the column, or use count_distinct"
            )
        measures.append(Measure(requested.aggregation, field))
    dimensions: list[Field | Grain] = [_field(layer, name) for name in arguments.by]
    if arguments.grain:
        dimensions.insert(0, Grain(arguments.grain))
    if len(set(measures)) < len(measures) or len(set(dimensions)) < len(dimensions):
        raise UserError("a measure or a dimension is named twice", fix="Name each once")
    conditions = tuple(_condition(layer, requested) for requested in arguments.filters)
    spans = (Span(arguments.start, arguments.end),) if arguments.start or arguments.end else ()
    order = (measures[0], True) if arguments.top else None
    requested_plan = Plan(
        layer, tuple(measures), tuple(dimensions), conditions, (), spans, order, limit=arguments.top
    )
    if layer.of_entities and requested_plan.timed:
        raise UserError(
            f"{layer.dataset} has entities, which are measured as they are now",
            fix="Leave out grain, start and end, or query their versions: `_updated` and `_is_deleted`",
        )
    return requested_plan


def _condition(layer: Meaning, filter_: Any) -> Condition:
    arity = {"between": (2, 2), "missing": (0, 0), "known": (0, 0), "=": (1, 100), "!=": (1, 100)}
    least, most = arity.get(filter_.operator, (1, 1))
    if not least <= len(filter_.values) <= most:
        raise UserError(f"{filter_.operator} takes {least} value{'s' if least != 1 else ''}")
    field = _field(layer, filter_.column)
    return Condition(field, filter_.operator, tuple(_compared(field, value) for value in filter_.values))


def _compared(field: Field, value: Value) -> Value:
    """A value as its column is compared with it: DuckDB would round the text of a number to an integer."""
    if field.kind == Kind.STRING and not isinstance(value, str):
        raise UserError(f"{field.name} has texts, and {value} is none", fix="Write the value in quotes")
    if field.kind not in (Kind.LONG, Kind.DOUBLE) or not isinstance(value, str):
        return value
    if not _NUMBER.fullmatch(value):
        raise UserError(f"{field.name} has numbers, and {value[:40]!r} is none", fix="Write it like 12.5")
    return Decimal(value)


def _field(layer: Meaning, name: str) -> Field:
    if (field := layer.field(name)) is None:
        names = [field.name for field in layer.fields]
        fix = meant(name, names, f"It has {', '.join(names[:40])}")
        raise UserError(f"{layer.dataset} has no column {name[:100]!r}", fix=fix)
    return field
