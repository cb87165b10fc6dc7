"""Clauses of a question: conditions, time ranges, and dimensions."""

from collections.abc import Iterator
from dataclasses import replace

from pulse_pipelines.ask.meaning import Field
from pulse_pipelines.ask.phrases import ADJECTIVES, Phrases, keys
from pulse_pipelines.ask.plan import Condition, Grain, Plan, Value
from pulse_pipelines.ask.words import MAX_PHRASE
from pulse_pipelines.domain.schemas.columns import Kind

COMPARATORS = {
    ">": (
        "more than",
        "greater than",
        "higher than",
        "larger than",
        "longer than",
        "bigger than",
        "over",
        "above",
        "exceeding",
        "later than",
        ">",
    ),
    "<": (
        "less than",
        "fewer than",
        "lower than",
        "smaller than",
        "shorter than",
        "under",
        "below",
        "earlier than",
        "<",
    ),
    ">=": ("at least", "no less than", ">="),
    "<=": ("at most", "up to", "no more than", "<="),
}
FILLERS = keys(
    ", ? . ! please there is are was were be been did do does have has had overall altogether and recorded "
    "measured observed happened happen occurred occur"
)
"""Filler words between two clauses."""
CONNECTORS = keys("where with whose having that which when for if having of")
NEUTRAL = keys("in at for of on with")
"""Prepositions before a value that do not determine its column."""
GROUPERS = (
    "by",
    "per",
    "for each",
    "for every",
    "in each",
    "in every",
    "of each",
    "on each",
    "at each",
    "from each",
    "broken down by",
    "grouped by",
    "split by",
    "across",
    "each",
    "every",
)
RATIOS = ("per", "for", "of", "each", "every")
"""First words of groupers after which a number may be the divisor of a measure."""
VERSUS = ("vs", "versus", "compared to", "compared with", "against")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TO_BE = ("is", "was", "are", "were", "equals", "equal to", "=", "of", ":")
_NOT = ("is not", "was not", "are not", "were not", "not", "!=")
_EXCEPT = ("excluding", "except", "except for", "other than", "not from", "not")
PlanEnds = Iterator[tuple[Plan, int]]


class Clauses(Phrases):
    """Parser of clauses, made of phrases."""

    def clauses(self, plan: Plan, i: int) -> PlanEnds:
        """Parse any number of clauses, with filler words between them."""
        i = self.skip(i, FILLERS)
        yield plan, i
        for narrowed, end in self._clause(plan, i):
            yield from self.clauses(narrowed, end)

    def _clause(self, plan: Plan, i: int) -> PlanEnds:
        yield from self._time(plan, i)
        yield from self._group(plan, i)
        if plan.measures and self.at(i) in ("of", "for"):
            yield from ((plan, end) for end in self.row(i + 1))
        if _are(plan, "avg") and self.at(i) == "per" and not self.plural(i + 2):
            yield from ((plan, end) for end in self.row(i + 1))  # an average is one per row
        if _are(plan, "count_distinct") and self.at(i - 1) in ("have", "had"):  # carriers that have flights
            yield from ((plan, end) for end in self.row(i))
        yield from self._in_unit(plan, i)
        if _counts(plan) and len(plan.dimensions) == 1 and not plan.order:
            yield from ((replace(plan, outer="avg"), end) for end in self.one_of(i, "on average"))
        if plan.counted:  # ambiguous: of all rows, or of those that are counted?
            return
        for condition, end in self.condition(i):
            if self._swallowed(plan.conditions, condition, i):
                continue
            yield replace(plan, conditions=(*plan.conditions, condition)), end
            yield from self._versus(plan, condition, end)

    def _swallowed(self, before: tuple[Condition, ...], condition: Condition, i: int) -> bool:
        """Whether "not" may hold for a second condition, too: not cancelled and late."""
        negated = bool(before) and before[-1].operator == "!=" and condition.operator != "!="
        return negated and self.at(i - 1) in ("and", ",")

    def _in_unit(self, plan: Plan, i: int) -> PlanEnds:
        """The unit that all measures have: in miles."""
        ends = [
            {end for scale, end in self.unit(measure.field, i + 1) if scale == 1 and end > i + 1}
            for measure in plan.measures
            if measure.field
        ]
        if self.at(i) == "in" and ends and len(ends) == len(plan.measures):
            yield from ((plan, end) for end in set.intersection(*ends))

    def _versus(self, plan: Plan, condition: Condition, i: int) -> PlanEnds:
        """A second value of the same column, to be distinguished from the first: JFK vs LGA."""
        field = condition.field
        if (condition.operator, len(condition.values)) != ("=", 1) or not isinstance(field, Field):
            return
        for start in self.one_of(i, *VERSUS) if field not in plan.dimensions else ():
            for values, end in self.value(field, start):
                if len(values) == 1 and values != condition.values:
                    either_value = replace(condition, values=(*condition.values, *values))
                    compared = (*plan.dimensions, field)
                    yield replace(plan, conditions=(*plan.conditions, either_value), dimensions=compared), end

    def _time(self, plan: Plan, i: int) -> PlanEnds:
        if plan.spans:
            return
        for first, end in self.times.spans(i):
            yield replace(plan, spans=(first,)), end
            for start in self.one_of(end, *VERSUS):
                for second, last in self.times.plain(start):
                    yield replace(plan, spans=(first, second)), last

    def _group(self, plan: Plan, i: int) -> PlanEnds:
        if plan.limit or plan.order:
            return
        for start in self.one_of(i, *GROUPERS):
            dimensions = list(self.dimensions(start))
            numbers = any(
                isinstance(dimension, Field) and dimension.measure
                for some, _ in dimensions
                for dimension in some
            )
            if numbers and self.at(i) in RATIOS:
                continue  # fare per passenger: of each number of passengers, or divided by it?
            for some, end in dimensions:
                if not set(some) & set(plan.dimensions):
                    yield replace(plan, dimensions=(*plan.dimensions, *some)), end

    def adjective(self, i: int) -> Iterator[tuple[tuple[Grain, ...], int]]:
        """A grain in front of a measure: daily, monthly."""
        yield (), i
        if unit := ADJECTIVES.get(self.at(i)):
            yield (Grain(unit),), i + 1

    def condition(self, i: int) -> Iterator[tuple[Condition, int]]:
        """Parse one condition on rows."""
        start = i
        i = self.skip(i, CONNECTORS)
        i = next(self.one_of(i, "is", "was", "are", "were", "had", "have", "has"), i)
        yield from self._of_field(i + 1 if i == start and self.at(i) in NEUTRAL else i)
        yield from self._number_first(i)
        yield from self._negated(i)
        yield from self._boolean(i)
        yield from self._weekday(start)
        place = start + 1 if self.at(start) in NEUTRAL else start
        for field, values, end in self.bare_value(self.skip(place)):
            yield from self._listed(field, "=", values, end)

    def _of_field(self, i: int) -> Iterator[tuple[Condition, int]]:
        for field, end in self.field(i):
            for start in {end, *self.one_of(end, *_TO_BE)}:
                yield from self._compared(field, start)
                for last in self.one_of(start, "missing", "unknown", "null", "not known"):
                    yield Condition(field, "missing"), last
                for last in self.one_of(start, "known", "not missing", "not null"):
                    yield Condition(field, "known"), last
                for middle in self.one_of(start, "in", "one of", "either"):
                    yield from self._values(field, "=", middle)
                yield from self._values(field, "=", start)
            for start in self.one_of(end, *_NOT):
                yield from self._values(field, "!=", start)
        i = self.skip(i)
        for start in self.one_of(i, "missing", "unknown"):
            yield from ((Condition(field, "missing"), end) for field, end in self.field(start))
        for start in self.one_of(i, "no", "without"):  # for a number ambiguous: missing, or zero?
            for field, end in self.field(start):
                if field.kind == Kind.STRING:
                    yield Condition(field, "missing"), end

    def _values(self, field: Field, operator: str, i: int) -> Iterator[tuple[Condition, int]]:
        for values, end in self.value(field, i):
            yield from self._listed(field, operator, values, end)

    def _listed(
        self, field: Field, operator: str, values: tuple[Value, ...], end: int
    ) -> Iterator[tuple[Condition, int]]:
        """A list of values of the same column."""
        yield Condition(field, operator, values), end
        joint = self.skip(end, frozenset((",", "or", "and")))
        if joint > end:
            for more, last in self._values(field, operator, joint):
                if not set(more.values) & set(values):
                    yield replace(more, values=(*values, *more.values)), last

    def _compared(self, field: Field, i: int) -> Iterator[tuple[Condition, int]]:
        """A comparison with a number: over 60, at least 60 minutes, between 1 and 2, 60 or more."""
        if field.kind not in (Kind.LONG, Kind.DOUBLE):
            return
        for operator, phrases in COMPARATORS.items():
            for start in self.one_of(i, *phrases):
                for values, end in self.value(field, start):
                    yield Condition(field, operator, values), end
        for start in self.one_of(i, "between"):
            for least, middle in self.value(field, start):
                for joint in self.one_of(middle, "and"):
                    for most, end in self.value(field, joint):
                        if least <= most:
                            yield Condition(field, "between", (*least, *most)), end
        for values, end in self.value(field, i):
            for last in self.one_of(end, "or more", "or higher", "or longer"):
                yield Condition(field, ">=", values), last
            for last in self.one_of(end, "or less", "or fewer", "or lower"):
                yield Condition(field, "<=", values), last

    def _number_first(self, i: int) -> Iterator[tuple[Condition, int]]:
        """A number before its column: more than 200 seats; over 1,000 miles, if one column has miles."""
        if (number := self.number(i)) is not None and i:
            for field, end in self.measure_field(i + 1):
                yield Condition(field, "=", (number,)), end
        for operator, phrases in COMPARATORS.items():
            for start in self.one_of(i, *phrases):
                if (number := self.number(start)) is None:
                    continue
                of = next(self.one_of(start + 1, "of"), start + 1)
                for field, end in self.measure_field(of):
                    yield Condition(field, operator, (number,)), end
                for unit, fields in self.names.units.items():
                    if len(fields) == 1 and (end := self.is_at(start + 1, unit)):
                        of = next(self.one_of(end, "of"), end)
                        ends = [last for field, last in self.field(of) if field == fields[0]]
                        yield Condition(fields[0], operator, (number,)), ends[0] if ends else end

    def _negated(self, i: int) -> Iterator[tuple[Condition, int]]:
        for start in self.one_of(i, *_EXCEPT):
            for field, end in self.field(start):
                yield from self._values(field, "!=", end)
            if start == i + 1 and self.at(i) == "not" and not self._is_value(i):
                continue
            for field, values, end in self.bare_value(self.skip(start)):
                yield from self._listed(field, "!=", values, end)

    def _is_value(self, i: int) -> bool:
        """Whether "not" begins a value of the data, such as "not paid": then it can be read in two ways."""
        return any(self._hits.get(self.text(i, size)) for size in range(2, MAX_PHRASE + 1))

    def _boolean(self, i: int) -> Iterator[tuple[Condition, int]]:
        negated = self.at(i) == "not"
        for field, end in self.field(i + negated):
            if field.kind == Kind.BOOLEAN:
                yield Condition(field, "!=" if negated else "=", (True,)), end

    def _weekday(self, i: int) -> Iterator[tuple[Condition, int]]:
        """Weekdays: on Mondays, on weekends; not "on Monday", which is one day."""
        if self.at(i) not in ("on", "for", "during"):
            return
        weekday = Grain("weekday")
        for word, days in (("weekend", DAYS[5:]), ("weekday", DAYS[:5])):
            if self.at(i + 1) == word and self.plural(i + 2):
                yield Condition(weekday, "=", days), i + 2
        for day in DAYS:
            if self.at(i + 1) == day.lower() and self.plural(i + 2):
                yield Condition(weekday, "=", (day,)), i + 2


def _are(plan: Plan, aggregation: str) -> bool:
    """Whether all measures are of one kind."""
    return {measure.aggregation for measure in plan.measures} == {aggregation}


def _counts(plan: Plan) -> bool:
    """Whether the plan only counts rows."""
    return len(plan.measures) == 1 and plan.measures[0].aggregation == "count" and plan.outer is None
