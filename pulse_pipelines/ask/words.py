"""Words of a question, and the names that they can match: those of a dataset's columns, and of its rows."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from pulse_pipelines.ask.meaning import Field, Meaning

MAX_PHRASE = 6
_TOKEN = re.compile(
    r"""'(?P<single>[^'\n]*)'(?!\w) | "(?P<double>[^"\n]*)"
    | (?P<date>\d{4}-\d{2}-\d{2}(?![\w-]))
    | (?P<number>-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w-]))
    | (?P<word>\w[\w./-]*\w|\w) | (?P<sign>[<>!]=|[<>=,?!:;.%()])""",
    re.VERBOSE,
)
_POSSESSIVE = re.compile(r"(?<=\w)(?:'s|\u2019s)\b")
LONG_FORMS = {
    "amt": "amount",
    "arr": "arrival",
    "avg": "average",
    "cnt": "count",
    "dep": "departure",
    "dest": "destination",
    "dir": "direction",
    "humid": "humidity",
    "lat": "latitude",
    "lon": "longitude",
    "num": "number",
    "precip": "precipitation",
    "qty": "quantity",
    "sched": "scheduled",
    "temp": "temperature",
    "visib": "visibility",
}
"""Common abbreviations in column names."""
ROWS = ("row", "record", "event", "entry", "observation")
"""Words for a row of any dataset."""


@dataclass(frozen=True)
class Word:
    text: str
    """The word as written."""
    lemma: str
    kind: str
    """word, number, date, quoted or sign."""


def words(question: str) -> list[Word]:
    """Split a question into words."""
    found = []
    for match in _TOKEN.finditer(_POSSESSIVE.sub("", question)):
        kind = str(match.lastgroup)
        text = match[kind]
        if kind in ("single", "double"):
            found.append(Word(text, "", "quoted"))
        else:
            found.append(Word(text, lemma(text) if kind == "word" else text.lower(), kind))
    return found


def lemma(word: str) -> str:
    """A word without its plural ending: crude, but both sides of a comparison use it."""
    low = word.lower()
    if len(low) > 4 and low.endswith("ies"):
        return low[:-3] + "y"
    if len(low) > 4 and low.endswith(("sses", "shes", "ches", "xes")):
        return low[:-2]
    if len(low) > 3 and low.endswith("s") and not low.endswith(("ss", "us", "is")):
        return low[:-1]
    return low


Phrase = tuple[str, ...]


def phrase(text: str) -> Phrase:
    """The lemmas of a name: dep_delay, "Departure delay"."""
    parts = re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text))
    return tuple(map(lemma, parts))


@lru_cache(maxsize=128)
def names_of(meaning: Meaning) -> "Names":
    """The names in a dataset, cached per semantic layer."""
    return Names(meaning)


class Names:
    """Name lookup in a dataset: the columns that a phrase can mean, and whether it means a row."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        own = (meaning.dataset, *meaning.synonyms)
        self.own_rows = {found for name in own if (found := phrase(name))}
        """Words for rows of this dataset that hardly fit another one."""
        self.rows = self.own_rows | {(word,) for word in ROWS}
        fields: dict[Phrase, dict[str, Field]] = defaultdict(dict)
        for field in meaning.fields:
            for known in _phrases(field):
                if known not in self.rows:
                    fields[known][field.name] = field
        self._fields = {known: tuple(found.values()) for known, found in fields.items()}
        self.units: dict[str, list[Field]] = defaultdict(list)
        for field in meaning.fields:
            if field.unit:
                self.units[field.unit.lower()].append(field)

    def fields(self, found: Phrase) -> tuple[Field, ...]:
        """The columns that a phrase can mean."""
        return self._fields.get(found, ())

    def near(self, word: str) -> list[Field]:
        """Columns with a word in one of their names."""
        return list(
            {f.name: f for known, fields in self._fields.items() if word in known for f in fields}.values()
        )


def _phrases(field: Field) -> set[Phrase]:
    """All phrases that can name a column."""
    last = field.name.split(".")[-1]
    found: set[Phrase] = {(lemma(field.name),), (lemma(last),)}
    for name in (field.name, last, field.title, *field.synonyms):
        if 0 < len(known := phrase(name)) <= MAX_PHRASE:
            longer = [{part, lemma(LONG_FORMS.get(part, part))} for part in known]
            found |= {tuple(each) for each in product(*longer)}
    return {known for known in found if known}
