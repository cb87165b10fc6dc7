"""SQL of a plan, in DuckDB's dialect. Names are quoted and values are literals: a question is never SQL."""

from datetime import UTC, datetime
from decimal import Decimal

from pulse_pipelines.ask.meaning import Field
from pulse_pipelines.ask.plan import Condition, Grain, Measure, Plan, Span, Value
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_pipelines.sql.engine import LATEST

AT = '"timestamp"'
EXACT_DIGITS, EXACT_PLACES = 15, 22
"""Digits of a decimal, and of these after its point, that DuckDB casts to the nearest double."""
_CYCLES = {
    "weekday": f"dayname({AT})",
    "hour of day": f"hour({AT})",
    "month of year": f"monthname({AT})",
}
_ORDERED = {
    "weekday": f"min(isodow({AT}))",
    "month of year": f"min(month({AT}))",
}


def sql(plan: Plan) -> str:
    """Generate the query."""
    dimensions = [(_dimension(dimension), _name(dimension)) for dimension in plan.dimensions]
    if len(plan.spans) > 1:
        dimensions.append((_compared(plan.spans), "period"))
    measures = [(_measure(measure, plan), measure_name(measure)) for measure in plan.measures]
    if plan.per:
        return _per_period(plan, plan.per)
    if not measures and not dimensions:
        return _rows(plan)
    chosen = ", ".join(f'{expression} AS "{name}"' for expression, name in (*dimensions, *measures))
    lines = [f"SELECT {'' if measures else 'DISTINCT '}{chosen}", f"FROM {_source(plan)}"]
    lines += _where(plan)
    if dimensions and measures:
        lines.append("GROUP BY " + ", ".join(str(n + 1) for n in range(len(dimensions))))
    if plan.outer:
        inner = "\n  ".join(lines)
        name = measures[0][1]
        return f'SELECT {plan.outer}("{name}") AS "{plan.outer}_{name}"\nFROM (\n  {inner}\n)'
    lines += _order(plan, len(dimensions))
    if plan.limit:
        lines.append(f"LIMIT {plan.limit:d}")
    return "\n".join(lines)


def _per_period(plan: Plan, unit: str) -> str:
    """The mean number of rows in a period, of which some may have none."""
    periods = str(plan.periods) if plan.periods else f"(date_diff('{unit}', min({AT}), max({AT})) + 1)"
    name = f"{plan.outer}_{measure_name(plan.measures[0])}"
    return "\n".join([f'SELECT count(*) / {periods} AS "{name}"', f"FROM {_source(plan)}", *_where(plan)])


def _rows(plan: Plan) -> str:
    columns = dict.fromkeys([AT, *(f'"{field.name.split(".")[0]}"' for field in plan.dataset.fields)])
    lines = [f"SELECT {', '.join(columns)}", f"FROM {_source(plan)}", *_where(plan)]
    if plan.order and isinstance(plan.order[0], Field):
        column, down = plan.order[0].sql, plan.order[1]
        lines.append(f"ORDER BY {column} {'DESC' if down else 'ASC'} NULLS LAST, {AT}")
    else:
        lines.append(f"ORDER BY {AT} {'ASC' if plan.newest is False else 'DESC'}")
    return "\n".join([*lines, *([f"LIMIT {plan.limit:d}"] if plan.limit else [])])


def _source(plan: Plan) -> str:
    name = plan.dataset.dataset
    return f'(FROM "{name}" {LATEST})' if plan.dataset.of_entities else f'"{name}"'


def _dimension(dimension: Field | Grain) -> str:
    if isinstance(dimension, Field):
        return dimension.sql
    if dimension.unit in _CYCLES:
        return _CYCLES[dimension.unit]
    truncated = f"date_trunc('{dimension.unit}', {AT})"
    return truncated if dimension.unit in ("minute", "hour") else f"CAST({truncated} AS DATE)"


def _name(dimension: Field | Grain) -> str:
    if isinstance(dimension, Field):
        return dimension.name.split(".")[-1]
    return dimension.unit.replace(" ", "_")


def measure_name(measure: Measure) -> str:
    """The name of a measure's column."""
    if measure.field is None:
        return {"count": "number"}.get(measure.aggregation, measure.aggregation)
    return f"{measure.aggregation}_{measure.field.name.replace('.', '_')}"


def _measure(measure: Measure, plan: Plan) -> str:
    if measure.field is None:
        if measure.aggregation == "count":
            return "count(*)"
        counted = " AND ".join(_condition(condition) for condition in plan.counted)
        share = f"count_if({counted}) / nullif(count(*), 0)"
        return f"100.0 * {share}" if measure.aggregation == "percent" else share
    column = measure.field.sql
    match measure.aggregation:
        case "count_distinct":
            return f"count(DISTINCT {column})"
        case "stddev":
            return f"stddev_samp({column})"
        case "p90" | "p95" | "p99":
            return f"quantile_cont({column}, 0.{measure.aggregation[1:]})"
        case name:
            return f"{name}({column})"


def _where(plan: Plan) -> list[str]:
    conditions = [_condition(condition) for condition in plan.conditions]
    if plan.spans:
        spans = [_span(span) for span in plan.spans]
        conditions.append(spans[0] if len(spans) == 1 else f"({' OR '.join(f'({span})' for span in spans)})")
    if plan.limit or not plan.measures:  # rankings and lists leave out NULLs
        conditions += [
            f"{dimension.sql} IS NOT NULL" for dimension in plan.dimensions if isinstance(dimension, Field)
        ]
    if plan.order and isinstance(plan.order[0], Field):
        conditions.append(f"{plan.order[0].sql} IS NOT NULL")
    return ["WHERE " + "\n  AND ".join(conditions)] if conditions else []


def _condition(condition: Condition) -> str:
    column = _dimension(condition.field)
    kind = condition.field.kind if isinstance(condition.field, Field) else Kind.STRING
    values = [_literal(value, kind) for value in condition.values]
    match condition.operator:
        case "missing":
            return f"{column} IS NULL"
        case "known":
            return f"{column} IS NOT NULL"
        case "between":
            return f"{column} BETWEEN {values[0]} AND {values[1]}"
        case "=" if len(values) > 1:
            return f"{column} IN ({', '.join(values)})"
        case "!=" if len(values) > 1:
            return f"({column} IS NULL OR {column} NOT IN ({', '.join(values)}))"
        case "!=":
            return f"{column} IS DISTINCT FROM {values[0]}"
        case operator:
            return f"{column} {operator} {values[0]}"


def _literal(value: Value, kind: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    number = Decimal(str(value))
    written = f"{number:f}"
    # DuckDB compares decimals exactly with integers; its cast of one to a double may be off in the last digit
    digits, places = len(number.as_tuple().digits), len(written.partition(".")[2])
    is_off = places and (digits > EXACT_DIGITS or places > EXACT_PLACES)
    return f"{written}e0" if is_off and kind == Kind.DOUBLE else written


def _moment(at: datetime) -> str:
    return f"CAST('{at.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}+00' AS TIMESTAMPTZ)"


def _span(span: Span) -> str:
    ends = [f"{AT} >= {_moment(span.first)}"] if span.first else []
    ends += [f"{AT} < {_moment(span.until)}"] if span.until else []
    return " AND ".join(ends) or "true"


def _compared(spans: tuple[Span, ...]) -> str:
    """The range that a row is in, as the range's first day."""
    cases = (
        f"WHEN {_span(span)} THEN '{span.first:%Y-%m-%d}'" if span.first else f"WHEN {_span(span)} THEN ''"
        for span in spans
    )
    return f"CASE {' '.join(cases)} END"


def _order(plan: Plan, dimensions: int) -> list[str]:
    if plan.order and isinstance(plan.order[0], Measure):
        name, down = measure_name(plan.order[0]), plan.order[1]
        keys = [f'"{name}" {"DESC" if down else "ASC"} NULLS LAST']
        keys += [str(n + 1) for n in range(dimensions)]
        return [f"ORDER BY {', '.join(keys)}"]
    if not dimensions:
        return []
    keys = [str(n + 1) for n in range(dimensions)]
    for n, dimension in enumerate(plan.dimensions):
        if plan.measures and isinstance(dimension, Grain) and dimension.unit in _ORDERED:
            keys[n] = _ORDERED[dimension.unit]
    return [f"ORDER BY {', '.join(keys)}"]
