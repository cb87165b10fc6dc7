"""Words of a question, and the names that they can match: those of a dataset's columns, and of its rows."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product

from pulse_pipelines.ask.meaning import UNITS, Field, Meaning
from pulse_pipelines.domain.schemas.columns import Kind

MAX_PHRASE = 6
_TOKEN = re.compile(
    r"""'(?P<single>[^'\n]*)'(?!\w) | "(?P<double>[^"\n]*)" | “(?P<curly>[^”\n]*)”
    | (?P<date>\d{4}-\d{2}-\d{2}(?![\w/\u2212\u2013-]|[.,]\d))
    | (?P<number>[\u2212\u2013-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w/\u2212\u2013-]|[.,]\d))
    | (?P<word>\w(?:[\w./\u2212\u2013-]|(?<=\d),(?=\d))*\w|\w)
    | (?P<sign>(?<=\S)[?.!](?=[?.!,]*(?:\s|$)) | [?.!](?=[?.!\s]*$)
        | [<>=!≠≤≥](?:\s*[<>=!≠≤≥])+ | [<>=≠≤≥,:;%()€$£] | °[CF]\b | °)
    | (?P<other>\S)""",
    re.VERBOSE,
)
"""Each character but white space is in a token: one without a meaning is its own, which no rule takes."""
_SIGNS = {"≠": "!=", "<>": "!=", "≤": "<=", "≥": ">=", "==": "="}
"""Other ways to write a sign. A run of operators that is none of these or the usual ones means nothing."""
_MINUS = str.maketrans("\u2212\u2013", "--")
_POSSESSIVE = re.compile(r"(?<=[^\W\d_])(?:'s|\u2019s)\b")
LONG_FORMS = {
    "alt": "altitude",
    "amt": "amount",
    "arr": "arrival",
    "avg": "average",
    "cnt": "count",
    "dep": "departure",
    "dest": "destination",
    "dewp": "dew point",
    "dir": "direction",
    "humid": "humidity",
    "lat": "latitude",
    "lon": "longitude",
    "num": "number",
    "precip": "precipitation",
    "qty": "quantity",
    "sched": "scheduled",
    "temp": "temperature",
    "tz": "time zone",
    "tzone": "time zone",
    "visib": "visibility",
}
"""Common abbreviations in column names."""
SYNONYMS = {
    "altitude": ("elevation",),
    "destination": ("to",),
    "manufacturer": ("maker", "made by"),
    "origin": ("from",),
    "source": ("from",),
}
"""Other words for a column that is called just so, in any schema: "from JFK" is an origin of JFK."""
_TO_BE = ("is_", "was_")
_GLUED = "num"
"""An abbreviation that is often written together with the word before it."""
ROWS = ("row", "record", "event", "entry", "observation")
"""Words for a row of any dataset."""


@dataclass(frozen=True)
class Word:
    text: str
    """The word as written."""
    lemma: str
    """Empty for what no word of the grammar is: a quoted text, a character without a meaning."""
    kind: str
    """word, number, date, quoted, sign; other: a character without a meaning."""


def words(question: str) -> list[Word]:
    """Split a question into words."""
    tokens = []
    for match in _TOKEN.finditer(_POSSESSIVE.sub("", question)):
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        match kind:
            case "single" | "double" | "curly":
                tokens.append(Word(text, "", "quoted"))
            case "word":
                tokens.append(Word(text, lemma(text), kind))
            case "number":
                text = text.translate(_MINUS)
                tokens.append(Word(text, text, kind))
            case "sign":
                plain = "".join(text.split()).lower()
                tokens.append(Word(text, _SIGNS.get(plain, plain), kind))
            case _:
                tokens.append(Word(text, text if kind == "date" else "", kind))
    return tokens


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
        dataset_names = (meaning.dataset, *meaning.synonyms)
        self.own_rows = {words for name in dataset_names if (words := phrase(name))}
        """Words for rows of this dataset that hardly fit another one."""
        self.rows = self.own_rows | {(word,) for word in ROWS}
        self.rows |= {(*name, word) for name in self.own_rows for word in ROWS if len(name) < MAX_PHRASE}
        self._fields: dict[Phrase, tuple[Field, ...]] = {}
        # A name that the schema declares means its column, and none that it could be derived for.
        for names in (_declared_names, _derived_names):
            fields: dict[Phrase, dict[str, Field]] = defaultdict(dict)
            for field in meaning.fields:
                for name in names(field) - self.rows - self._fields.keys():
                    fields[name][field.name] = field
            self._fields |= {name: tuple(field.values()) for name, field in fields.items()}
        self.units: dict[str, list[Field]] = defaultdict(list)
        for field in meaning.fields:
            if field.unit:
                self.units[field.unit.lower()].append(field)

    def fields(self, name: Phrase) -> tuple[Field, ...]:
        """The columns that a phrase can mean."""
        return self._fields.get(name, ())

    def near(self, word: str) -> list[Field]:
        """Columns with a word in one of their names."""
        return list(
            {f.name: f for lemmas, fields in self._fields.items() if word in lemmas for f in fields}.values()
        )


def _declared_names(field: Field) -> set[Phrase]:
    """The names that the schema gives a column."""
    last = field.name.split(".")[-1]
    names = [phrase(name) for name in (field.name, last, field.title, *field.synonyms)]
    return {name for name in (*names, (lemma(field.name),), (lemma(last),)) if 0 < len(name) <= MAX_PHRASE}


def _derived_names(field: Field) -> set[Phrase]:
    """Names that follow from these: without abbreviations, without a unit, and usual words for the same."""
    name = field.name.split(".")[-1].lower()
    before, _, last = name.rpartition("_")
    plain = set()
    if before and (last == "id" or (field.unit and UNITS.get(last) == field.unit)):
        plain.add(phrase(before))  # user_id: a user; distance_km: a distance
    if field.kind == Kind.BOOLEAN and name.startswith(_TO_BE):
        plain.add(phrase(name.partition("_")[2]))  # is_gift: what is a gift
    names = set().union(*map(_long_forms, _declared_names(field) | plain))
    for word, synonyms in SYNONYMS.items():
        if (word,) in names:
            names |= set(map(phrase, synonyms))
    return {name for name in names if 0 < len(name) <= MAX_PHRASE}


def _long_forms(name: Phrase) -> set[Phrase]:
    """A name with its abbreviations as they are, and spelled out: dep_delay, tailnum."""
    ways = []
    for part in name:
        forms = {(part,), phrase(LONG_FORMS.get(part, part))}
        if len(part) > len(_GLUED) + 2 and part.endswith(_GLUED):
            forms.add((part.removesuffix(_GLUED), "number"))
        ways.append(forms)
    return {tuple(chain.from_iterable(forms)) for forms in product(*ways)}
