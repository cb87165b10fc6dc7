"""MCP tools that run a query: the caller's SQL, or a measure."""

import asyncio
from typing import Any

from pulse_api.mcp.arguments import ExplainArguments, MeasureArguments, QueryArguments
from pulse_api.mcp.session import Answer, Session
from pulse_pipelines.ask import meaning, plan, record, write
from pulse_pipelines.ask.meaning import Field, Meaning
from pulse_pipelines.ask.plan import Condition, Grain, Measure, Plan, Span
from pulse_pipelines.ask.read import Ran
from pulse_pipelines.domain.json_values import with_text_ids
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_pipelines.sql.pinned import Travel
from pulse_resources.errors import UserError, meant


async def query(session: Session, given: QueryArguments) -> Answer:
    """A page of what a query gives."""
    ran = await session.query(given.sql, Travel(dict(given.snapshots)))
    return await _page(session, ran, given.sql, given.offset, given.limit)


async def explain(session: Session, given: ExplainArguments) -> Answer:
    """The plan of a query, which reads nothing."""
    ran = await session.query(f"EXPLAIN {given.sql}")
    plan_of_it = "\n".join(str(row["explain_value"]) for row in ran.rows)
    return Answer(await read(session, ran) | {"plan": plan_of_it})


async def measure(session: Session, given: MeasureArguments) -> Answer:
    """A page of measures by dimensions, as a query of Pulse's own making, which sorts them."""
    found = await asyncio.to_thread(meaning.of_one, session.tenant, given.dataset)
    asked = _plan(found, given)
    sql = write.sql(asked)
    ran = await session.query(sql, Travel(dict(given.snapshots)))
    answer = await _page(session, ran, sql, given.offset, given.limit)
    return Answer(dict(answer.facts) | {"understood": plan.said(asked)}, answer.untrusted)


async def _page(session: Session, ran: Ran, sql: str, offset: int, limit: int) -> Answer:
    rows = list(ran.rows[offset : offset + limit])
    pinned = with_text_ids(
        {"snapshots": {name: snapshot for name, snapshot in ran.snapshots.items() if snapshot is not None}}
    )
    more = offset + limit < len(ran.rows)
    facts = await read(session, ran) | {
        "sql": sql,
        "rows_in_all": len(ran.rows),
        "next": pinned | {"offset": offset + limit} if more else None,
    }
    return Answer(facts, {"columns": list(ran.columns), "rows": rows})


async def read(session: Session, ran: Ran) -> dict[str, Any]:
    """What a query has read: its tables at their snapshots, and when events landed in them last."""
    freshness = await asyncio.to_thread(record.freshness, session.tenant, list(ran.snapshots))
    return with_text_ids({"query_id": ran.query_id, "snapshots": ran.snapshots, "freshness": freshness})


def _plan(found: Meaning, given: MeasureArguments) -> Plan:
    measures = []
    for each in given.measures:
        if each.column is None and each.aggregation != "count":
            raise UserError(f"{each.aggregation} needs a column", fix="Name one of describe_dataset")
        field = _field(found, each.column) if each.column else None
        numbers = each.aggregation in ("sum", "avg", "median", "stddev", "p90", "p95", "p99")
        if field and numbers and field.kind not in (Kind.LONG, Kind.DOUBLE):
            raise UserError(f"{field.name} is not a number", fix="Use count, count_distinct, min or max")
        if field and each.aggregation == "count":
            raise UserError(
                "count takes no column: it counts rows", fix="Leave out the column, or use count_distinct"
            )
        measures.append(Measure(each.aggregation, field))
    dimensions: list[Field | Grain] = [_field(found, name) for name in given.by]
    if given.grain:
        dimensions.insert(0, Grain(given.grain))
    if len(set(measures)) < len(measures) or len(set(dimensions)) < len(dimensions):
        raise UserError("a measure or a dimension is named twice", fix="Name each once")
    conditions = tuple(_condition(found, each) for each in given.filters)
    spans = (Span(given.start, given.end),) if given.start or given.end else ()
    order = (measures[0], True) if given.top else None
    asked = Plan(found, tuple(measures), tuple(dimensions), conditions, (), spans, order, limit=given.top)
    if found.of_entities and asked.timed:
        raise UserError(
            f"{found.dataset} has entities, which are measured as they are now",
            fix="Leave out grain, start and end, or query their versions: `_updated` and `_is_deleted`",
        )
    return asked


def _condition(found: Meaning, given: Any) -> Condition:
    wanted = {"between": (2, 2), "missing": (0, 0), "known": (0, 0), "=": (1, 100), "!=": (1, 100)}
    least, most = wanted.get(given.operator, (1, 1))
    if not least <= len(given.values) <= most:
        raise UserError(f"{given.operator} takes {least} value{'s' if least != 1 else ''}")
    return Condition(_field(found, given.column), given.operator, tuple(given.values))


def _field(found: Meaning, name: str) -> Field:
    if (field := found.field(name)) is None:
        names = [field.name for field in found.fields]
        fix = meant(name, names, f"It has {', '.join(names[:40])}")
        raise UserError(f"{found.dataset} has no column {name[:100]!r}", fix=fix)
    return field
