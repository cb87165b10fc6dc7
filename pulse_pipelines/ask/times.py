"""Ranges of time in words: this month, the last 7 days, in March 2013, from June to August, since 2013-06-01.

All in UTC. A month or day without a year is the latest that has begun; the first of two is the last before
the second: on a day in 2026 "from November to January" began in 2025. "Last week" is the calendar's week
before this one; "the last 7 days" end now.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta

from pulse_pipelines.ask.plan import Span
from pulse_pipelines.ask.words import Word

MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTHS = {name: n + 1 for n, name in enumerate(MONTHS)} | {name[:3]: n + 1 for n, name in enumerate(MONTHS)}
_MONTHS["sept"] = 9
MONTH_WORDS = frozenset(_MONTHS)
_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
_CALENDAR = ("hour", "day", "week", "month", "quarter", "year")
_ORDINAL = re.compile(r"(\d{1,2})(?:st|nd|rd|th)", re.IGNORECASE)
_NUMBERS = {
    w: n
    for n, w in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 1)
}
_HALVES = {"first": 1, "second": 2, "third": 3, "fourth": 4}
SpanEnds = Iterator[tuple[Span, int]]


def start_of(at: datetime, unit: str) -> datetime:
    """The start of the calendar unit that contains a moment."""
    at = at.replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return at
    at = at.replace(hour=0)
    match unit:
        case "week":
            return at - timedelta(days=at.weekday())
        case "month":
            return at.replace(day=1)
        case "quarter":
            return at.replace(month=(at.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return at.replace(month=1, day=1)
    return at


def moved(at: datetime, unit: str, by: int) -> datetime:
    """Add a number of units; months must be before their 29th day. Raises OverflowError: beyond the years."""
    if unit in _SECONDS:
        return at + timedelta(seconds=_SECONDS[unit] * by)
    months = at.year * 12 + at.month - 1 + by * _MONTHS_OF[unit]
    if not MINYEAR <= months // 12 <= MAXYEAR:
        raise OverflowError(f"the year {months // 12}")
    return at.replace(year=months // 12, month=months % 12 + 1)


def _last_before(first: Span, last: Span) -> datetime | None:
    """The beginning of a range whose first end has no year: the last time that it is before the second."""
    if not (first.first and last.first):
        return None
    try:
        beginning = first.first.replace(year=last.first.year)
        return beginning if beginning <= last.first else beginning.replace(year=beginning.year - 1)
    except ValueError:  # February 29
        return None


def whole(at: datetime, unit: str) -> Span:
    return Span(at, moved(at, unit, 1))


class Times:
    """Parser of time ranges among the words of one question."""

    def __init__(self, words: Sequence[Word], now: datetime) -> None:
        self._words = words
        self._now = now.astimezone(UTC)

    def periods(self, span: Span, unit: str) -> int | None:
        """How many periods of a range have begun; None: none, or no whole number of them."""
        until = min(span.until or self._now, self._now)
        if span.first is None or span.first >= until or (unit in _MONTHS_OF and span.first.day > 28):
            return None
        if unit in _SECONDS:
            number = -((span.first - until) // timedelta(seconds=_SECONDS[unit]))
        else:
            months = (until.year - span.first.year) * 12 + until.month - span.first.month
            number = max(months // _MONTHS_OF[unit], 1)
            number += moved(span.first, unit, number) < until
        under_way = span.until is None or span.until > until
        return number if under_way or moved(span.first, unit, number) == until else None

    def _at(self, i: int) -> str:
        return self._words[i].lemma if i < len(self._words) else ""

    def spans(self, i: int) -> SpanEnds:
        """Time ranges that begin at a word, each with its end."""
        word = self._at(i)
        if word in ("in", "on", "during", "for", "over", "within", "of", "from", "at"):
            i += 1
            yield from self._bounded(i) if word == "from" else ()
            yield from self.plain(i)
        elif word == "between":
            yield from self._between(i + 1, ("and",))
        elif word in ("since", "after", "before", "starting", "until"):
            for span, end in self._date(i + 1 + (self._at(i + 1) == "from")):
                if word == "before":
                    yield Span(None, span.first), end
                elif word == "after":
                    yield Span(span.until, None), end
                elif word != "until":
                    yield Span(span.first, None), end
        else:
            yield from self._relative(i)
            yield from (match for match in self._date(i) if match[1] > i + 1 or self._is_date(i))

    def _is_date(self, i: int) -> bool:
        return self._words[i].kind == "date"

    def _bounded(self, i: int) -> SpanEnds:
        yield from self._between(i, ("to", "through", "until", "till"))

    def _between(self, i: int, joints: Sequence[str]) -> SpanEnds:
        for first, middle in self._date(i):
            if self._at(middle) not in joints:
                continue
            begins = first.first if self._dated(i, middle) else None
            for last, end in self._date(middle + 1, no_earlier=begins):
                start, ends = begins or _last_before(first, last), last.first
                future = ends and ends > self._now and not self._dated(middle + 1, end)
                if start and last.until and start < last.until and not future:
                    yield Span(start, last.until), end

    def _dated(self, i: int, end: int) -> bool:
        """Whether a year is among some words."""
        return any(self._year(n) or self._is_date(n) for n in range(i, end))

    def plain(self, i: int) -> SpanEnds:
        """Time ranges without a preposition."""
        yield from self._relative(i)
        yield from self._date(i)

    def _relative(self, i: int) -> SpanEnds:
        i += self._at(i) == "the"
        word, following = self._at(i), self._at(i + 1)
        today = start_of(self._now, "day")
        if word in ("today", "yesterday"):
            yield whole(today - timedelta(days=word == "yesterday"), "day"), i + 1
        if word in ("this", "current") and following in _CALENDAR:
            yield whole(start_of(self._now, following), following), i + 2
        if word in ("last", "previous") and following in _CALENDAR:
            yield whole(moved(start_of(self._now, following), following, -1), following), i + 2
        if word in ("last", "past", "previous"):
            number = self._number(i + 1)
            unit = self._at(i + 2)
            if number and (unit in _SECONDS or unit in ("month", "year")):
                back = self._now.replace(day=min(self._now.day, 28)) if unit not in _SECONDS else self._now
                yield Span(moved(back, unit, -number), self._now), i + 3

    def _number(self, i: int) -> int | None:
        text = self._at(i)
        if text.isdecimal() and len(text) < 5:
            return int(text)
        return _NUMBERS.get(text)

    def _year(self, i: int) -> int | None:
        text = self._at(i)
        return int(text) if re.fullmatch(r"(19|20)\d\d", text) else None

    def _date(self, i: int, no_earlier: datetime | None = None) -> SpanEnds:
        """A day, month, quarter, half or year, as a time range."""
        i += self._at(i) == "the"
        if i >= len(self._words):
            return
        if self._is_date(i):
            try:
                yield whole(datetime.fromisoformat(self._at(i)).replace(tzinfo=UTC), "day"), i + 1
            except ValueError:
                return
        if year := self._year(i):
            yield whole(datetime(year, 1, 1, tzinfo=UTC), "year"), i + 1
        if re.fullmatch(r"q[1-4]", self._at(i)):
            yield from self._quarter(int(self._at(i)[1]), i + 1)
        if (part := _HALVES.get(self._at(i))) and self._at(i + 1) == "quarter":
            yield from self._quarter(part, i + 2)
        if (
            part in (1, 2)
            and self._at(i + 1) == "half"
            and (year := self._year(i + 2 + (self._at(i + 2) == "of")))
        ):
            first = datetime(year, 6 * part - 5, 1, tzinfo=UTC)
            yield Span(first, moved(first, "month", 6)), i + 3 + (self._at(i + 2) == "of")
        if month := _MONTHS.get(self._at(i).rstrip(".")):
            yield from self._in_month(month, i, no_earlier)
        elif (day := self._day(i)) and (
            month := _MONTHS.get(self._at(j := i + 1 + (self._at(i + 1) == "of")))
        ):
            yield from self._day_of(month, day, j + 1, no_earlier)

    def _quarter(self, number: int, i: int) -> SpanEnds:
        i += self._at(i) == "of"
        if year := self._year(i):
            yield whole(datetime(year, 3 * number - 2, 1, tzinfo=UTC), "quarter"), i + 1
        else:
            first = self._latest(lambda year: datetime(year, 3 * number - 2, 1, tzinfo=UTC), None)
            yield whole(first, "quarter"), i

    def _in_month(self, month: int, i: int, no_earlier: datetime | None) -> SpanEnds:
        after = i + 1 + (self._at(i + 1) == "of")
        if year := self._year(after):
            yield whole(datetime(year, month, 1, tzinfo=UTC), "month"), after + 1
        elif day := self._day(i + 1):
            yield from self._day_of(month, day, i + 2, no_earlier)
        else:
            first = self._latest(lambda year: datetime(year, month, 1, tzinfo=UTC), no_earlier)
            yield whole(first, "month"), i + 1

    def _day(self, i: int) -> int | None:
        match = _ORDINAL.fullmatch(self._at(i))
        text = match[1] if match else self._at(i)
        return int(text) if text.isdecimal() and 1 <= len(text) <= 2 and 1 <= int(text) <= 31 else None

    def _day_of(self, month: int, day: int, i: int, no_earlier: datetime | None) -> SpanEnds:
        after = i + (self._at(i) in (",", "of"))
        try:
            if year := self._year(after):
                yield whole(datetime(year, month, day, tzinfo=UTC), "day"), after + 1
            else:
                first = self._latest(lambda year: datetime(year, month, day, tzinfo=UTC), no_earlier)
                yield whole(first, "day"), i
        except ValueError:  # February 30
            return

    def _latest(self, of_year: Callable[[int], datetime], no_earlier: datetime | None) -> datetime:
        """The latest that has begun; for the end of a range the first after its beginning."""
        if no_earlier is not None:
            same_year = of_year(no_earlier.year)
            return same_year if same_year >= no_earlier else of_year(no_earlier.year + 1)
        same_year = of_year(self._now.year)
        return same_year if same_year <= self._now else of_year(self._now.year - 1)
