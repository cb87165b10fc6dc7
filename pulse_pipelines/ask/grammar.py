"""Grammar: parses a question in English into a plan, if every word of it has a place there.

Nothing is guessed. An ambiguous question is refused with both readings, one with an unknown word is refused
with that word. The possible meanings of a word come from the dataset's semantic layer, and from its data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pulse_pipelines.ask.clauses import VERSUS, Clauses, PlanEnds
from pulse_pipelines.ask.keywords import AMOUNTS, HAVE, LEAD, NEWEST, OLDEST, SHOWN_ROWS
from pulse_pipelines.ask.meaning import Field, Meaning
from pulse_pipelines.ask.phrases import DIFFERENT, HIGH, LOW, Hit, TooLongError, keys
from pulse_pipelines.ask.plan import Condition, Measure, Plan, checked
from pulse_pipelines.ask.words import Word, names_of
from pulse_pipelines.domain.schemas.columns import Kind


def plans(
    meaning: Meaning, words: Sequence[Word], now: datetime, hits: Mapping[str, Sequence[Hit]]
) -> set[Plan]:
    """All plans that a question can mean for a dataset; empty: it does not fit.

    Raises:
        OverflowError: it names a time that is beyond the calendar.
    """
    try:
        return _Grammar(names_of(meaning), words, now, hits).plans()
    except TooLongError:
        return set()


class _Grammar(Clauses):
    def plans(self) -> set[Plan]:
        complete = set()
        empty = Plan(self.names.meaning)
        for before, i in self.clauses(empty, 0):
            for middle_plan, middle in self._main_part(before, i):
                for plan, end in self.clauses(middle_plan, middle):
                    if end == len(self.words) and (whole := checked(plan)) and (counted := self._per(whole)):
                        complete.add(counted)
        return complete

    def _per(self, plan: Plan) -> Plan | None:
        """The plan, with the periods of its range for a mean per period; None: their number is not whole."""
        if plan.per is None or not plan.spans or plan.spans[0].first is None:
            return plan
        periods = self.times.periods(plan.spans[0], plan.per)
        return replace(plan, periods=periods) if periods else None

    def _main_part(self, plan: Plan, i: int) -> PlanEnds:
        """The main part of a question, with or without introductory words."""
        lead = self.skip(i, LEAD)
        for start in {i, lead}:
            yield from self._superlatives(plan, start)
            yield from self._nested(plan, start)
            yield from self._share(plan, start)
            yield from self._compare(plan, start)
            yield from self._top(plan, start)
            yield from self._listing(plan, start)
            for grains, at in self.adjective(self.skip(start)):
                grouped = replace(plan, dimensions=(*plan.dimensions, *grains))
                yield from self._count(grouped, at)
                yield from self._measures(grouped, at)

    def _narrowed_rows(self, plan: Plan, i: int) -> PlanEnds:
        """A word for rows, with an optional value before it: JFK flights."""
        yield from ((plan, end) for end in self.row(i))
        for field, values, end in self.bare_value(self.skip(i)):
            condition = Condition(field, "=", values)
            yield from ((replace(plan, conditions=(*plan.conditions, condition)), x) for x in self.row(end))

    def _count(self, plan: Plan, i: int) -> PlanEnds:
        counted = replace(plan, measures=(Measure("count"),))
        name = ("how many", "number of", "total number of", "count of", "count", "total count of", "total")
        for start in self.one_of(self.skip(i), *name):
            yield from self._narrowed_rows(counted, start)
            different = self.at(self.skip(start)) in DIFFERENT
            at = self.skip(start) + different
            fields = [match for match in self.field(at) if match[0].kind != Kind.BOOLEAN]
            numbers = any(field.measure for field, _ in fields)  # how many engines: of planes, or kinds?
            for field, end in fields if self.at(start - 1) != "total" else ():
                if different or not numbers:
                    yield replace(plan, measures=(Measure("count_distinct", field),)), end
                elif field.measure and self.at(start - 1) == "many" and self.plural(end):
                    summed = replace(plan, measures=(Measure("sum", field),))
                    last = next(self.one_of(end, "are there", "were there"), end)
                    yield from ((summed, done) for done in self.one_of(last, "in total", "in all"))
        for narrowed, end in self._narrowed_rows(counted, i):
            yield from ((narrowed, last) for last in self.one_of(end, "count"))
            if plan.dimensions or self._grouped(narrowed, end):  # flights per month
                yield narrowed, end

    def _grouped(self, plan: Plan, i: int) -> bool:
        """Whether one of the clauses that follow adds a dimension."""
        return any(len(clause.dimensions) > len(plan.dimensions) for clause, _ in self.clauses(plan, i))

    def _measures(self, plan: Plan, i: int) -> PlanEnds:
        """Minimum and maximum of one column, or the average of several columns."""
        yield from ((replace(plan, measures=measures), end) for measures, end in self._some_measures(i))

    def _some_measures(
        self, i: int, aggregation: str | None = None
    ) -> Iterator[tuple[tuple[Measure, ...], int]]:
        aggregations_at = list(self._aggregations(self.skip(i)))
        if not aggregations_at and aggregation:
            aggregations_at = [((aggregation,), i)]
        for aggregations, start in aggregations_at:
            of = self.skip(next(self.one_of(start, "of"), start))
            for field, end in self.measured(of):
                measures = tuple(Measure(aggregation, field) for aggregation in aggregations)
                yield measures, end
                for joint in list(self.one_of(end, "and", ", and", ","))[:1]:
                    further = self._some_measures(joint, aggregations[-1])
                    yield from (((*measures, *more), last) for more, last in further)
        if not aggregations_at:
            for measure, end in self.target(i):
                if measure.field is not None:
                    yield (measure,), end

    def _aggregations(self, i: int) -> Iterator[tuple[tuple[str, ...], int]]:
        for first, end in self.aggregation(i):
            if first == "count_distinct":
                continue
            yield (first,), end
            joint = next(self.one_of(end, "and", ", and", ","), 0)
            if joint:
                yield from (((first, *further), last) for further, last in self._aggregations(joint))

    def _superlatives(self, plan: Plan, i: int) -> PlanEnds:
        """Superlative: which carrier has the most flights, which month had the lowest average delay."""
        i += self.at(i) in ("on", "in", "at")
        if self.at(i) not in ("which", "what"):
            return
        number = self.whole(i + 1)
        start = i + 1 + (number is not None)
        for dimension, end in self.dimension(start):
            if number is None and self.plural(end):
                continue  # the number of results is missing
            limit = number or 1
            yield from self._superlative(
                replace(plan, dimensions=(*plan.dimensions, dimension), limit=limit), end
            )
        for end in self.row(start):
            limit = number or 1
            if number or not self.plural(end):
                yield from self._extreme(replace(plan, limit=limit), end)

    def _superlative(self, plan: Plan, i: int) -> PlanEnds:
        i = self.skip(self.skip(i, HAVE))
        down = self.at(i) in HIGH
        if not down and self.at(i) not in LOW:
            return
        for measure, end in self.target(i + 1):
            counts = measure.aggregation in ("count", "count_distinct")
            summed = measure.aggregation == "sum"
            if not counts and not (summed if self.at(i) in AMOUNTS else self._says_how(i + 1, end)):
                continue  # ambiguous: the highest value, or the highest average?
            yield replace(plan, measures=(measure,), order=(measure, down)), end

    def _says_how(self, i: int, end: int) -> bool:
        """Whether there is an aggregation between two places."""
        of_end = next(self.one_of(end - 2, "on average"), 0) == end
        return of_end or any(True for _ in self.aggregation(i))

    def _extreme(self, plan: Plan, i: int) -> PlanEnds:
        """Rows with the greatest values of a column."""
        i = self.skip(self.skip(i, HAVE))
        if self.at(i) in HIGH | LOW and self.at(i) not in AMOUNTS:
            for field, end in self.measure_field(i + 1):
                yield replace(plan, order=(field, self.at(i) in HIGH)), end

    def _top(self, plan: Plan, i: int) -> PlanEnds:
        """Ranking: top 5 carriers by flights, the 3 origins with the most flights, the busiest day."""
        i = self.skip(i)
        if self.at(i) == "busiest":
            for dimension, end in self.dimension(i + 1):
                if not self.plural(end):
                    yield _ranked(plan, dimension, Measure("count"), True, 1), end
        for common in self.one_of(i, "most common", "most frequent", "most popular", "least common"):
            for field, end in self.field(common):
                if not self.plural(end):
                    yield _ranked(plan, field, Measure("count"), self.at(i) == "most", 1), end
        ranks = self.at(i) in ("top", "bottom")
        number = self.whole(i + ranks)
        if number is None:
            return
        start, down = i + ranks + 1, self.at(i) != "bottom"
        for dimension, end in self.dimension(start):
            if ranks:
                for by in self.one_of(end, "by", "in", "for"):
                    for measure, last in self.target(by):
                        yield _ranked(plan, dimension, measure, down, number), last
            ranked = replace(plan, dimensions=(*plan.dimensions, dimension), limit=number)
            yield from self._superlative(ranked, end)
        for end in self.row(start):
            rows = replace(plan, limit=number)
            yield from self._extreme(rows, end)
            for by in self.one_of(end, "by") if ranks else ():
                yield from ((replace(rows, order=(field, down)), x) for field, x in self.measure_field(by))

    def _listing(self, plan: Plan, i: int) -> PlanEnds:
        """Rows, the latest first; or the distinct values of a column."""
        lists = self.at(i) in ("list", "show", "which", "what") or self.at(i - 1) in ("show", "me", "list")
        i = self.skip(i + (self.at(i) in ("list", "show", "which", "what")), keys("the me all are is"))
        start = self.skip(i + (self.at(i) in DIFFERENT), keys("values of"))
        if self.is_at(start, "number of"):  # ambiguous: all numbers, or their sum?
            return
        if lists or self.at(i) in DIFFERENT or self.at(i - 1) == "the":
            for field, end in self.field(start):
                if self.plural(end):
                    yield replace(plan, dimensions=(*plan.dimensions, field)), end
        number = self.whole(i)
        at = i + (number is not None)
        at = next(self.one_of(at, "most"), at)
        if self.names.meaning.of_entities:  # the oldest plane is not the earliest version
            return
        newest = self.at(at) in NEWEST
        if (newest or self.at(at) in OLDEST) and (number or lists):
            number = number if number is not None else self.whole(at + 1)
            at += 1 + (self.whole(at + 1) is not None)
            for end in self.row(at):
                limit = number or (SHOWN_ROWS if self.plural(end) else 1)
                yield replace(plan, newest=newest, limit=limit), end

    def _share(self, plan: Plan, i: int) -> PlanEnds:
        """Share: what percentage of flights from JFK were delayed by more than an hour."""
        i = self.skip(i, keys("what which the"))
        word = self.at(i)
        percent = word in keys("percentage percent share")
        if not percent and word not in keys("fraction proportion"):
            return
        measure = Measure("percent" if percent else "ratio")
        for of in self.one_of(i + 1, "of", "of all", "of the"):
            for end in self.row(of):
                base = replace(plan, measures=(measure,))
                for narrowed, middle in self.clauses(base, end):
                    if len(narrowed.conditions) == len(base.conditions) or self._verb_before(middle):
                        yield from self._counted(narrowed, middle)

    def _verb_before(self, i: int) -> bool:
        return i > 0 and self.at(i - 1) in keys("was were are is had have has")

    def _counted(self, plan: Plan, i: int) -> PlanEnds:
        for condition, end in self.condition(i):
            counted = replace(plan, counted=(*plan.counted, condition))
            yield counted, end
            for joint in self.one_of(end, "and"):
                for more, last in self._counted(counted, joint):
                    if not self._swallowed(counted.counted, more.counted[len(counted.counted)], joint):
                        yield more, last

    def _compare(self, plan: Plan, i: int) -> PlanEnds:
        """Comparison of the average delay of JFK and LGA: one number per value, or per time range."""
        if self.at(i) != "compare":
            return
        for measure, end in self.target(i + 1):
            measured = replace(plan, measures=(measure,))
            for condition, last in self.condition(next(self.one_of(end, "between"), end)):
                if condition.operator == "=" and len(condition.values) > 1:
                    dimensions = (*plan.dimensions, condition.field)
                    yield (
                        replace(measured, dimensions=dimensions, conditions=(*plan.conditions, condition)),
                        last,
                    )
            for first, middle in self.times.spans(next(self.one_of(end, "between"), end)):
                for joint in self.one_of(middle, "and", "with", "to", *VERSUS):
                    for second, last in self.times.plain(joint):
                        yield replace(measured, spans=(first, second)), last

    def _nested(self, plan: Plan, i: int) -> PlanEnds:
        """Mean of counts: the average number of flights per day."""
        i = self.skip(i, keys("the what is was"))
        if self.at(i) not in ("average", "mean", "avg"):
            return
        start = next(self.one_of(i + 1, "number of"), i + 1)
        for grains, at in self.adjective(start):
            at = next(self.one_of(at, "number of"), at)
            for narrowed, end in self._narrowed_rows(plan, at):
                nested = replace(narrowed, measures=(Measure("count"),), outer="avg")
                if grains:
                    yield replace(nested, dimensions=grains), end
                    continue
                for middle, last in self.clauses(nested, end):
                    if not middle.dimensions:
                        for per in self.one_of(last, "per", "a", "in a", "each"):
                            for dimension, done in self.dimension(per):
                                if isinstance(dimension, Field) and dimension.measure:
                                    continue
                                yield replace(middle, dimensions=(dimension,)), done


def _ranked(plan: Plan, dimension: object, measure: Measure, down: bool, limit: int) -> Plan:
    dimensions = (*plan.dimensions, dimension)
    return replace(plan, dimensions=dimensions, measures=(measure,), order=(measure, down), limit=limit)  # type: ignore[arg-type]
