"""From a question to the single plan that it can mean, or to the reason why there is none."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pulse_pipelines.ask import grammar, plan, write
from pulse_pipelines.ask.keywords import KEYWORDS, MAX_WORDS
from pulse_pipelines.ask.meaning import Field, Meaning
from pulse_pipelines.ask.phrases import Hit, Phrases
from pulse_pipelines.ask.plan import Plan
from pulse_pipelines.ask.times import MONTH_WORDS
from pulse_pipelines.ask.words import MAX_PHRASE, Phrase, Word, lemma, names_of, words
from pulse_pipelines.domain.schemas.columns import Kind
from pulse_resources.errors import UserError

MAX_SEARCHED = 4
"""Datasets whose data is searched for words of a question."""
MAX_PARSED = 20
"""Datasets for which a question is parsed: those with the most matching names."""
MAX_COLUMNS = 30
MAX_LOOKUP_VALUES = 60
"""Limits of the lookup in the data: columns, and words or phrases."""
_SHOWN = 30
_MEANT = ("word", "sign", "other")
"""Kinds of words that have to mean something."""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query."""

    query_id: str
    columns: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    snapshots: Mapping[str, int | None]


Run = Callable[[str], Awaitable[QueryResult]]
"""Runs SQL as the tenant that asks, with gate, limits and record."""


class NotUnderstood(UserError):  # noqa: N818 - reads as the fact it states
    """A question without a single meaning.

    Args:
        understood: readings of its recognised parts.
        fields_by_dataset: names of fields that it may mean, by slug.
    """

    def __init__(
        self,
        message: str,
        *,
        fix: str | None = None,
        understood: Sequence[str] = (),
        fields_by_dataset: Mapping[str, Sequence[str]] | None = None,
        **where: object,
    ) -> None:
        super().__init__(message, fix=fix, **where)
        self.understood = list(understood)
        self.fields_by_dataset = dict(fields_by_dataset or {})


async def read(meanings: Sequence[Meaning], question: str, now: datetime, run: Run) -> Plan:
    """Parse a question into its plan.

    Args:
        run: queries the data for values that occur in the question.

    Raises:
        NotUnderstood: no dataset has everything that it names, or it is ambiguous.
    """
    question_words = words(question)
    if not question_words or len(question_words) > MAX_WORDS:
        raise NotUnderstood(
            f"the question has {len(question_words)} words", fix=f"Ask in 1 to {MAX_WORDS} words"
        )
    try:
        return await _read(meanings, question_words, now, run)
    except OverflowError as error:
        fix = "Name times of the years 1 to 9998"
        raise NotUnderstood("the question names a time beyond the calendar", fix=fix) from error


async def _read(meanings: Sequence[Meaning], question_words: Sequence[Word], now: datetime, run: Run) -> Plan:
    near = await asyncio.to_thread(nearest, meanings, question_words) or list(meanings)
    plans = await asyncio.to_thread(_plans, near[:MAX_PARSED], question_words, now)
    heard: list[Hit] = []
    if plans and {word.lemma for word in question_words} & MONTH_WORDS:  # May is a month, and may be a value
        fitting = {plan.dataset for plan in plans}
        plans |= await _with_values(
            [meaning for meaning in near if meaning in fitting], question_words, now, run, heard
        )
    elif not plans:
        plans = await _with_values(near, question_words, now, run, heard)
    return _only(plans, meanings, question_words, heard)


async def _with_values(
    near: Sequence[Meaning], question_words: Sequence[Word], now: datetime, run: Run, heard: list[Hit]
) -> set[Plan]:
    """Plans with values that are looked up in the data; `heard`: gets those of the nearest dataset."""
    plans: set[Plan] = set()
    for meaning in near[:MAX_SEARCHED]:
        if hits := await _values(meaning, question_words, run):
            plans |= {
                replace(plan, notes=_values_note(hits))
                for plan in grammar.plans(meaning, question_words, now, hits)
            }
            heard += [hit for value_hits in hits.values() for hit in value_hits] if meaning is near[0] else []
    return plans


def _plans(meanings: Sequence[Meaning], question_words: Sequence[Word], now: datetime) -> set[Plan]:
    return {plan for meaning in meanings for plan in grammar.plans(meaning, question_words, now, {})}


def _only(
    plans: set[Plan], meanings: Sequence[Meaning], question_words: Sequence[Word], heard: Sequence[Hit]
) -> Plan:
    if len({plan.dataset.dataset for plan in plans}) > 1:
        rows = named([plan.dataset for plan in plans], question_words)
        plans = {plan for plan in plans if plan.dataset in rows} or plans
    if len(plans) == 1:
        (only,) = plans
        if only.dataset.of_entities and only.timed:  # the time of a newest version is not when an entity was
            name = only.dataset.dataset
            fix = "Leave out the time, or send SQL over the versions of the entities"
            raise NotUnderstood(f"{name} has entities, which are asked for as they are now", fix=fix)
        return only
    if plans:
        readings = sorted(plan.in_words(candidate) for candidate in plans)
        fix = "Say which of these is meant: " + " | ".join(readings[:4])
        raise NotUnderstood("the question can mean several things", fix=fix, understood=readings)
    raise _refusal(meanings, question_words, heard)


def named(meanings: Sequence[Meaning], question_words: Sequence[Word]) -> list[Meaning]:
    """Datasets whose rows a question names, by the slug or a synonym of it."""
    lemmas = [word.lemma for word in question_words]

    def has(row: Phrase) -> bool:
        return any(tuple(lemmas[i : i + len(row)]) == row for i in range(len(lemmas)))

    return [meaning for meaning in meanings if any(map(has, names_of(meaning).own_rows))]


def nearest(meanings: Sequence[Meaning], question_words: Sequence[Word]) -> list[Meaning]:
    """Datasets with names that occur in a question, those with the most first."""
    shared = [(len(_words_in_names(meaning, question_words)), meaning) for meaning in meanings]
    return [meaning for count, meaning in sorted(shared, key=lambda pair: -pair[0]) if count]


def _words_in_names(meaning: Meaning, question_words: Sequence[Word]) -> set[str]:
    names = names_of(meaning)
    rows = {part for row in names.own_rows for part in row}
    lemmas = {word.lemma for word in question_words if word.kind == "word"}
    return (lemmas & rows) | set(filter(names.near, lemmas - rows))


async def _values(meaning: Meaning, question_words: Sequence[Word], run: Run) -> dict[str, list[Hit]]:
    """Find values of text columns in the question, by the words as written."""
    familiar = (_words_in_names(meaning, question_words) | KEYWORDS) - MONTH_WORDS
    strange = {
        n for n, word in enumerate(question_words) if word.kind == "word" and word.lemma not in familiar
    }
    values = {
        " ".join(word.text.lower() for word in question_words[i : i + size])
        for i in range(len(question_words))
        for size in range(1, MAX_PHRASE + 1)
        if i + size <= len(question_words) and strange & set(range(i, i + size))
    }
    fields = [field for field in meaning.fields if field.kind == Kind.STRING][:MAX_COLUMNS]
    if not values or not fields:
        return {}
    candidates = sorted(values, key=lambda value: (value.count(" "), value))
    result = await run(_lookup(meaning, fields, candidates[:MAX_LOOKUP_VALUES]))
    hits: dict[str, list[Hit]] = {}
    for n, field in enumerate(fields):
        for value in (result.rows[0][f"f{n}"] if result.rows else None) or ():
            hits.setdefault(str(value).lower(), []).append(Hit(field.name, str(value)))
    return hits


def _lookup(meaning: Meaning, fields: Sequence[Field], phrases: Sequence[str]) -> str:
    values = ", ".join("'{}'".format(phrase.replace("'", "''")) for phrase in phrases)
    columns = ", ".join(
        f"list(DISTINCT {field.sql}) FILTER (lower({field.sql}) IN ({values})) AS f{n}"
        for n, field in enumerate(fields)
    )
    return f'SELECT {columns}\nFROM "{meaning.dataset}"'


def _values_note(hits: Mapping[str, Sequence[Hit]]) -> tuple[str, ...]:
    shown = sorted({f"{hit.value!r} is in {hit.field}" for value_hits in hits.values() for hit in value_hits})
    return (f"in the data, {', '.join(shown[:6])}",)


def _refusal(
    meanings: Sequence[Meaning], question_words: Sequence[Word], heard: Sequence[Hit]
) -> NotUnderstood:
    """What is not understood: words that neither the names nor the data of the nearest dataset have."""
    near = nearest(meanings, question_words)[:3] or list(meanings)[:3]
    if not near:
        return NotUnderstood("the tenant has no datasets", fix="Create one, and send events to it")
    first = near[0]
    names, familiar = names_of(first), _words_in_names(first, question_words) | KEYWORDS
    familiar |= {part for hit in heard for part in map(lemma, hit.value.split())}
    familiar |= {sign for field in first.fields for sign in Phrases.unit_signs(field)}
    strange = [word.text for word in question_words if word.kind in _MEANT and word.lemma not in familiar]
    understood, unclear = [], []
    for word in question_words:
        meant = word.kind == "word" and word.lemma not in KEYWORDS
        fields = [field.name for field in names.near(word.lemma)] if meant else []
        if len(fields) > 1:
            unclear.append(f"{word.text!r} is in the names of {', '.join(fields[:6])}")
        elif fields:
            understood.append(f"{word.text!r} is in the name of {fields[0]}")
    message = "the question is not understood as a whole"
    if strange:
        message += f": {', '.join(map(repr, strange[:6]))} means nothing in {first.dataset}"
    elif unclear:
        message += f": {'; '.join(unclear[:3])}"
    fix = "Ask for a measure, by a dimension, with conditions, in a range of time; or send SQL"
    if heard and not strange:
        fix = f"Say what {heard[0].value!r} is, as in: where {heard[0].field} is {heard[0].value}"
    elif any(word.lemma == "hour" for word in question_words) and not strange:
        fix = "Say hourly, or by hour of the day"
    return NotUnderstood(
        message,
        fix=fix,
        understood=(*understood, *unclear, *(f"{hit.value!r} is a value of {hit.field}" for hit in heard)),
        fields_by_dataset={
            meaning.dataset: [field.name for field in meaning.fields][:_SHOWN] for meaning in near
        },
    )


def sql_of(plan: Plan) -> str:
    """Generate the SQL of a plan."""
    return write.sql(plan)
