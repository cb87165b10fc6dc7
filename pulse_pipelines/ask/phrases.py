"""Phrases of a question: columns, rows, aggregations, values; each is returned with its end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from pulse_pipelines.ask.meaning import Field
from pulse_pipelines.ask.plan import Grain, Measure, Value
from pulse_pipelines.ask.times import Times
from pulse_pipelines.ask.units import CURRENCIES, MAX_DIGITS, MILLISECONDS, SAME_UNIT, in_unit
from pulse_pipelines.ask.words import MAX_PHRASE, Names, Word, lemma
from pulse_pipelines.domain.schemas.columns import Kind

MAX_RANKED = 10_000
MAX_STEPS = 50_000
"""Steps per parse: a question that needs more is not understood."""


def keys(text: str) -> frozenset[str]:
    return frozenset(map(lemma, text.split()))


AGGREGATIONS = {
    **dict.fromkeys(keys("average mean avg"), "avg"),
    **dict.fromkeys(keys("total sum combined"), "sum"),
    **dict.fromkeys(keys("maximum max highest largest biggest greatest longest peak"), "max"),
    **dict.fromkeys(keys("minimum min lowest smallest shortest"), "min"),
    "median": "median",
}
HIGH = keys("highest largest biggest greatest longest maximum max most")
LOW = keys("lowest smallest shortest minimum min fewest least")
DIFFERENT = keys("different distinct unique")
ARTICLES = keys("the a an all any")
GRAINS = ("minute", "hour", "day", "week", "month", "quarter", "year")
ADJECTIVES = {
    "hourly": "hour",
    "daily": "day",
    "weekly": "week",
    "monthly": "month",
    "quarterly": "quarter",
    "yearly": "year",
    "annual": "year",
}
NUMBERS = {
    word: number
    for number, word in enumerate(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 2
    )
}


class TooLongError(Exception):
    """The parse exceeds its step limit."""


@dataclass(frozen=True)
class Hit:
    """A value that occurs in the data."""

    field: str
    value: str


class Phrases:
    """The words of one question, parsed as phrases about one dataset.

    Args:
        hits: values of text columns that occur in the question, by the words in lower case.
    """

    def __init__(
        self, names: Names, words: Sequence[Word], now: datetime, hits: Mapping[str, Sequence[Hit]]
    ) -> None:
        self.names = names
        self.words = words
        self.times = Times(words, now)
        self._hits = hits
        self._steps = 0

    def at(self, i: int) -> str:
        """The lemma at a place; empty beyond the end."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooLongError
        return self.words[i].lemma if i < len(self.words) else ""

    def is_at(self, i: int, text: str) -> int:
        """The end of some words if they begin here, else 0."""
        parts = text.split()
        return i + len(parts) if all(self.at(i + n) == lemma(part) for n, part in enumerate(parts)) else 0

    def one_of(self, i: int, *texts: str) -> Iterator[int]:
        """The end of any of some phrases that begins here."""
        yield from (end for text in texts if (end := self.is_at(i, text)))

    def skip(self, i: int, words: frozenset[str] = ARTICLES) -> int:
        while self.at(i) in words:
            i += 1
        return i

    def plural(self, i: int) -> bool:
        """Whether the word before a place is a plural."""
        return self.words[i - 1].text.lower() != self.words[i - 1].lemma

    def field(self, i: int) -> Iterator[tuple[Field, int]]:
        """A column, by the longest matching name."""
        i = self.skip(i)
        for size in range(MAX_PHRASE, 0, -1):
            name = tuple(self.at(i + n) for n in range(size))
            if fields := self.names.fields(name):
                yield from ((field, i + size) for field in fields)
                return

    def measure_field(self, i: int) -> Iterator[tuple[Field, int]]:
        yield from (match for match in self.field(i) if match[0].measure)

    def measured(self, i: int) -> Iterator[tuple[Field, int]]:
        """A measure behind its aggregation: the average delay; the average number of seats."""
        yield from self.measure_field(i)
        for start in self.one_of(self.skip(i), "number of"):
            yield from (
                (field, end)
                for field, end in self.measure_field(start)
                if field.kind == Kind.LONG and self.plural(end)
            )

    def row(self, i: int) -> Iterator[int]:
        """A word for rows."""
        i = self.skip(i)
        for size in range(MAX_PHRASE, 0, -1):
            if tuple(self.at(i + n) for n in range(size)) in self.names.rows:
                yield i + size
                return

    def dimension(self, i: int) -> Iterator[tuple[Field | Grain, int]]:
        """A column, or a grain. "By hour" is ambiguous, so it is neither."""
        i = self.skip(i)
        fields = list(self.field(i))
        yield from fields
        if fields:
            return
        for unit, *words in (
            ("weekday", "day of the week", "day of week", "weekday"),
            ("hour of day", "hour of the day", "hour of day"),
            ("month of year", "month of the year", "month of year"),
        ):
            if ends := list(self.one_of(i, *words)):
                yield Grain(unit), ends[0]
                return
        i = self.skip(i, keys("calendar"))
        if self.at(i) in GRAINS and self.at(i) != "hour":
            yield Grain(self.at(i)), i + 1

    def dimensions(self, i: int) -> Iterator[tuple[tuple[Field | Grain, ...], int]]:
        """Several dimensions, separated by `and` or commas."""
        for first, end in self.dimension(i):
            yield (first,), end
            joint = self.skip(end, frozenset((",", "and")))
            joint = next(self.one_of(joint, "by", "per"), joint) if joint > end else joint
            if joint > end:
                yield from (((first, *further), last) for further, last in self.dimensions(joint))

    def aggregation(self, i: int) -> Iterator[tuple[str, int]]:
        """An aggregation: the average, the 95th percentile, the number of different."""
        i = self.skip(i)
        if end := self.is_at(i, "standard deviation"):
            yield "stddev", end
        if self.at(i) in ("p90", "p95", "p99"):
            yield self.at(i), i + 1
        if self.at(i) in ("90th", "95th", "99th") and self.at(i + 1) == "percentile":
            yield f"p{self.at(i)[:2]}", i + 2
        if aggregation := AGGREGATIONS.get(self.at(i)):
            yield aggregation, i + 1
        if self.is_at(i, "number of") and self.at(self.skip(i + 2)) in DIFFERENT:
            yield "count_distinct", self.skip(i + 2) + 1

    def target(self, i: int) -> Iterator[tuple[Measure, int]]:
        """A measure: of rows, or of a column with a stated or declared aggregation."""
        i = self.skip(i)
        for start in self.one_of(i, "number of", "total number of", "count of"):
            yield from ((Measure("count"), end) for end in self.row(start))
        for end in self.row(i):
            yield Measure("count"), end + (self.at(end) == "count")
        for aggregation, start in self.aggregation(i):
            of = next(self.one_of(start, "of"), start)
            fields = self.field(of) if aggregation == "count_distinct" else self.measured(of)
            yield from ((Measure(aggregation, field), end) for field, end in fields)
        for field, end in self.measure_field(i):
            average = next(self.one_of(end, "on average"), 0)
            if average:
                yield Measure("avg", field), average
            elif field.aggregation:
                yield Measure(field.aggregation, field), end

    def value(self, field: Field, i: int) -> Iterator[tuple[tuple[Value, ...], int]]:
        """A value to compare a column with; several if the data has several spellings."""
        i = self.skip(i)
        if i >= len(self.words):
            return
        if field.kind in (Kind.LONG, Kind.DOUBLE):
            before = self.at(i) in CURRENCIES  # $50
            if (number := self.number(i + before)) is None:
                return
            if before:
                if self.unit_of(field) == (CURRENCIES[self.at(i)],):
                    yield (number,), i + 2
                return
            yield from (((in_unit(number, scale),), end) for scale, end in self.unit(field, i + 1))
        elif field.kind == Kind.BOOLEAN:
            if self.at(i) in ("true", "false", "yes", "no"):
                yield (self.at(i) in ("true", "yes"),), i + 1
        elif self.words[i].kind == "quoted":
            yield (self.words[i].text,), i + 1
        else:
            for size in range(MAX_PHRASE, 0, -1):
                text = self.text(i, size)
                listed = {value for value in field.values if value.lower() == text}
                listed |= {hit.value for hit in self._hits.get(text, ()) if hit.field == field.name}
                if listed:
                    yield tuple(sorted(listed)), i + size
                    return

    def bare_value(self, i: int) -> Iterator[tuple[Field, tuple[str, ...], int]]:
        """A value without a column: all columns whose data contains it."""
        for size in range(MAX_PHRASE, 0, -1):
            hits = self._hits.get(self.text(i, size), ())
            for name in sorted({hit.field for hit in hits}):
                if (field := self.names.meaning.field(name)) is not None:
                    yield field, tuple(sorted({h.value for h in hits if h.field == name})), i + size
            if hits:
                return

    def text(self, i: int, size: int) -> str:
        """Some words as they were written, in lower case; empty if there are fewer words."""
        some = self.words[i : i + size]
        return " ".join(word.text.lower() for word in some) if len(some) == size else ""

    def number(self, i: int) -> Decimal | int | None:
        """A number, in digits or as a word; but not "one", which also stands for a thing."""
        if i < len(self.words) and self.words[i].kind == "word" and self.at(i) in NUMBERS:
            return NUMBERS[self.at(i)]
        if i >= len(self.words) or self.words[i].kind != "number":
            return None
        text = self.words[i].text.replace(",", "")
        if len(text) > MAX_DIGITS:
            return None
        return Decimal(text) if "." in text else int(text)

    def whole(self, i: int) -> int | None:
        """The requested number of things, if there can be so many."""
        number = self.number(i)
        return number if isinstance(number, int) and 0 < number <= MAX_RANKED else None

    @staticmethod
    def unit_of(field: Field) -> tuple[str, ...]:
        """The words of a column's unit, in one form."""
        return tuple(SAME_UNIT.get(part, part) for part in map(lemma, field.unit.split()))

    @classmethod
    def unit_signs(cls, field: Field) -> set[str]:
        """The signs for a column's unit: $, %."""
        return {sign for sign, same in SAME_UNIT.items() if (same,) == cls.unit_of(field)}

    def unit(self, field: Field, i: int) -> Iterator[tuple[int | Fraction, int]]:
        """The factor that converts a number to the column's unit, and the end of the unit's words."""
        column_unit = self.unit_of(field)
        units = tuple(SAME_UNIT.get(self.at(i + n), self.at(i + n)) for n in range(len(column_unit)))
        if column_unit and units == column_unit:
            yield 1, i + len(column_unit)
            return
        stated_milliseconds = MILLISECONDS.get(SAME_UNIT.get(self.at(i), self.at(i)))
        column_milliseconds = MILLISECONDS.get(column_unit[0]) if column_unit else None
        if column_milliseconds and stated_milliseconds:
            yield Fraction(stated_milliseconds, column_milliseconds), i + 1
        elif not stated_milliseconds:
            yield 1, i
