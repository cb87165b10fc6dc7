"""Plan: the structured meaning of a question about one dataset, from which SQL is generated."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from pulse_pipelines.ask.meaning import Field, Meaning

Value = str | Decimal | float | int | bool
"""What a column is compared with. A number of a question is exact: a decimal if it has a fraction."""
GRAINS = ("minute", "hour", "day", "week", "month", "quarter", "year")


@dataclass(frozen=True)
class Grain:
    """A time dimension."""

    unit: str


@dataclass(frozen=True)
class Measure:
    """An aggregation over rows."""

    aggregation: str
    """count, count_distinct, sum, avg, min, max, median, stddev, p90, p95, p99, percent, ratio, missing."""
    field: Field | None = None
    """None: the rows themselves."""


@dataclass(frozen=True)
class Condition:
    """A filter on rows."""

    field: Field | Grain
    operator: str
    """=, !=, <, <=, >, >=, between, missing, known. A row without a value is != every value."""
    values: tuple[Value, ...] = ()
    """Values for = and !=: any of them."""


@dataclass(frozen=True)
class Span:
    """A half-open time range in UTC."""

    first: datetime | None
    until: datetime | None


@dataclass(frozen=True)
class Plan:
    """The meaning of one question."""

    dataset: Meaning
    measures: tuple[Measure, ...] = ()
    """Empty: the rows themselves, or the distinct values of the dimensions."""
    dimensions: tuple[Field | Grain, ...] = ()
    conditions: tuple[Condition, ...] = ()
    counted: tuple[Condition, ...] = ()
    """Further conditions on the rows that `percent` or `ratio` count."""
    spans: tuple[Span, ...] = ()
    """Time ranges; several are compared."""
    order: tuple[Field | Measure, bool] | None = None
    """Sort key, and whether it is descending; a field sorts rows. None: sort by the dimensions."""
    newest: bool | None = None
    """Order of rows: True: the latest first; False: the earliest."""
    limit: int | None = None
    outer: str | None = None
    """Aggregation over the measure of all groups: avg."""
    periods: int | None = None
    """Periods of the range of a mean per period; None: from the one of the first row to that of the last."""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def per(self) -> str | None:
        """The period that a mean is per, all of which count; None: only groups that have rows count."""
        if not self.outer or any(isinstance(condition.field, Grain) for condition in self.conditions):
            return None
        of = self.dimensions[0]
        return of.unit if isinstance(of, Grain) and of.unit in GRAINS else None

    @property
    def timed(self) -> bool:
        """Whether it asks for the time of rows, which the newest versions of entities do not have."""
        conditions = (*self.conditions, *self.counted)
        of = (*self.dimensions, *(condition.field for condition in conditions))
        return bool(self.spans) or any(isinstance(part, Grain) for part in of)


def checked(plan: Plan) -> Plan | None:
    """The plan if its parts are compatible, else None."""
    if plan.outer and (len(plan.dimensions) != 1 or len(plan.spans) > 1):
        return None
    if any(measure.aggregation in ("percent", "ratio") for measure in plan.measures) and not plan.counted:
        return None
    equalities: dict[str, Condition] = {}
    for condition in plan.conditions:
        name = f"{condition.field}"
        if condition.operator == "=" and name in equalities and equalities[name].operator == "=":
            return None
        equalities[name] = condition
    if len(set(plan.measures)) < len(plan.measures):
        return None
    if plan.limit and plan.dimensions and len(plan.dimensions) > 1 and plan.order:
        return None  # top n per group is not supported
    return plan


def in_words(plan: Plan) -> str:
    """The plan in words, to show how a question was understood."""
    parts = []
    if plan.measures:
        parts.append(
            " and ".join(_measure(measure) for measure in plan.measures) + f" in {plan.dataset.dataset}"
        )
    elif plan.dimensions:
        parts.append(f"distinct values in {plan.dataset.dataset}")
    else:
        parts.append(f"rows of {plan.dataset.dataset}")
    if plan.dimensions:
        parts.append("by " + " and ".join(_dimension(dimension) for dimension in plan.dimensions))
    if plan.counted:
        parts.append("counted where " + " and ".join(_condition(condition) for condition in plan.counted))
    if plan.conditions:
        parts.append("where " + " and ".join(_condition(condition) for condition in plan.conditions))
    parts += [" compared with ".join(_span(span) for span in plan.spans)] if plan.spans else []
    if plan.outer:
        parts.append(f"then the {_NAMES[plan.outer]} of {_averaged(plan)}")
    if plan.order:
        by, down = plan.order
        name = by.name if isinstance(by, Field) else _measure(by)
        parts.append(f"the {'greatest' if down else 'least'} {name} first{_equals(plan)}")
    if plan.newest is not None:
        parts.append("the latest first" if plan.newest else "the earliest first")
    parts += [f"the first {plan.limit}"] if plan.limit else []
    return "; ".join((*parts, *plan.notes))


def _averaged(plan: Plan) -> str:
    if plan.per is None:
        return "those that have any"
    if plan.periods is None:
        return f"each {plan.per} from the first to the last that has any"
    return f"all {plan.periods:,} {plan.per}{'s' if plan.periods != 1 else ''} of the range"


def _equals(plan: Plan) -> str:
    """What a ranking leaves out without its being asked for."""
    of = " and ".join(map(_dimension, plan.dimensions))
    groups = (
        f", of each {of} that has any"
        if any(isinstance(dimension, Grain) for dimension in plan.dimensions)
        else ""
    )
    return groups + (f", of equal ones the first by {of or 'time'}" if plan.limit else "")


_NAMES = {
    "count": "number of rows",
    "count_distinct": "number of distinct",
    "sum": "total",
    "avg": "average",
    "min": "minimum",
    "max": "maximum",
    "median": "median",
    "stddev": "standard deviation",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "percent": "percentage of rows",
    "ratio": "fraction of rows",
}


def _measure(measure: Measure) -> str:
    if measure.field is None:
        return _NAMES[measure.aggregation]
    unit = f" ({measure.field.unit})" if measure.field.unit else ""
    return f"{_NAMES[measure.aggregation]} {measure.field.name}{unit}"


def _dimension(dimension: Field | Grain) -> str:
    return dimension.unit if isinstance(dimension, Grain) else dimension.name


def _condition(condition: Condition) -> str:
    name = _dimension(condition.field)
    if condition.operator in ("missing", "known"):
        return f"{name} is {condition.operator}"
    joint = " to " if condition.operator == "between" else " or "
    missing = " (or missing)" if condition.operator == "!=" else ""
    return f"{name} {condition.operator} {joint.join(map(_value, condition.values))}{missing}"


def _value(value: Value) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else repr(value)


def _span(span: Span) -> str:
    ends = [
        f"from {span.first:%Y-%m-%d %H:%M}" if span.first else "",
        f"before {span.until:%Y-%m-%d %H:%M}" if span.until else "",
    ]
    return " ".join(filter(None, (*ends, "UTC")))
