"""The language of Pulse: words that names may not have, phrases that prose may not have, and where they are.

`python -m support.language` (with PYTHONPATH=tests) writes the list of what the code still has. The list may
only shrink. Files are read by regular expressions, as parsing all of them takes five times as long; they rely
on the formatting by ruff and on annotated arguments.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "language.json"
FOLDERS = ("clients", "pulse_api", "pulse_pipelines", "pulse_resources", "chaos", "benchmarks", "docs")

THING = "the noun of the thing: row, snapshot, definition, missing_ids"
ACTION = "a verb and a noun: read_row, close_pool"
WORDS = {
    **dict.fromkeys(("found", "brought", "seen", "known", "kept", "given", "taken", "gone", "held"), THING),
    **dict.fromkeys(
        ("left", "came", "its", "own", "each", "of_one", "tried", "anew", "here", "there"), THING
    ),
    **dict.fromkeys(("who", "whose", "which", "what", "lane", "aside"), THING),
    **dict.fromkeys(("said", "told"), "definition, message, text"),
    **dict.fromkeys(("asked", "wanted"), "request, query, requested_tasks"),
    **dict.fromkeys(("look", "looked", "ran"), ACTION),
    **dict.fromkeys(("judge", "judged", "judging"), "validate, verdict"),
    **dict.fromkeys(("sweep", "swept"), "remove_orphans, remaining_rows"),
}
"""Words of a name, between underscores, and what to write instead."""
PHRASES = {
    r"anew\b": "again; from scratch",
    r"for ever\b": "permanently",
    r"(?<![Tt]here\s)(?:is|are) no (?!longer\b|more\b|one\b)[a-z]+": "is not a",
    r"but for\b": "except",
    r"any more\b": "no longer",
    r"ha(?:s|ve) not (?:an?|the|this|that|its)\b": "does not have",
    r"go(?:es)? on\b": "continues",
    r"nobody\b": "no one; or name who",
    r"(?:is|are) (?:said|told)\b": "reports; states",
    r"unless given\b": "by default; if omitted",
    r"says? so\b": "requests; declares",
    r'"""Of [a-z]+': "the thing first",
    r"what (?:is|was|it|they|a|the) [a-z]+ (?:is|was|are|were)\b": "name the thing",
    r"whose it (?:is|was)\b": "its owner",
    r"besides? (?:this|that) (?:there|nothing)\b": "also",
}
"""Phrases of pages, docstrings, comments, help and errors, and what to write instead.

Each begins with a literal, by which a regular expression is searched for quickly.
"""

_PHRASES = {re.compile(phrase.replace(" ", r"\s+")): better for phrase, better in PHRASES.items()}
_TEXT = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'
    r"'[^'\\\n]*(?:\\.[^'\\\n]*)*'|#[^\n]*",
    re.DOTALL,
)
_BOUND = re.compile(
    r"^\s*(?:async )?(?:def|class) (?P<defined>\w+)"
    r"|(?:^\s*|[(,*] ?)(?P<annotated>\w+): (?=\S)"
    r"|^\s*(?:\w+: [^=]+ )?(?P<targets>\(?\*?\w+(?:, \*?\w+)*,?\)?) [-+*/|&]?=(?!=)"
    r"|\bfor (?P<items>[\w, ()*]+?) in\b"
    r"|\bas (?P<alias>\w+|\([\w, ]+\))[:,)]"
    r"|\b(?P<walrus>\w+) :="
    r"|\blambda (?P<arguments>[\w, *=]*):",
    re.MULTILINE,
)
_BOUND_IN_TEXT = re.compile(r"\bfor [(*]*\w+(?:\)*, [(*]*\w+)*\)* in\b")
_CLASS = re.compile(r"^class (\w+)|^([A-Z][a-z]\w*) = ", re.MULTILINE)
_PACKED = re.compile(r"(?<=[(,\s])\*[(\[](?![^()\[\]]* for )(?=[^()\[\]]*,)")


@dataclass(frozen=True)
class Finding:
    """A word, phrase or form of a file that the rules do not want."""

    path: str
    line: int
    rule: str
    text: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text} ({self.better})"


def check_file(path: str, source: str) -> list[Finding]:
    """The findings of one file, by line."""
    if not path.endswith(".py"):
        return list(_phrases(path, source))
    code = _TEXT.sub(_blanked, source)
    texts = "".join(
        text if number % 2 else "\n" * text.count("\n") for number, text in enumerate(_texts_and_code(source))
    )
    return [*_names(path, code), *_packed(path, code), *_phrases(path, texts)]


def _texts_and_code(source: str) -> Iterator[str]:
    """Code and texts in turn."""
    end = 0
    for match in _TEXT.finditer(source):
        yield source[end : match.start()]
        yield match[0]
        end = match.end()
    yield source[end:]


def _blanked(match: re.Match[str]) -> str:
    """Nothing of a text, except the names that comprehensions within an f-string bind."""
    is_formatted = match.string[match.start() - 1 : match.start()] == "f"
    bound = _BOUND_IN_TEXT.findall(match[0]) if is_formatted else ()
    return " ".join(['""', *bound]) + "\n" * match[0].count("\n")


def _names(path: str, code: str) -> Iterator[Finding]:
    words = {name for name in set(re.findall(r"\w+", code)) if _dialect_word(name)}
    for number, line in enumerate(code.splitlines() if words else (), 1):
        if words.isdisjoint(re.findall(r"\w+", line)):
            continue
        for match in _BOUND.finditer(line):
            for name in re.findall(r"\w+", match[match.lastindex or 0]):
                if word := _dialect_word(name):
                    yield Finding(path, number, "names", name, WORDS[word])


@cache
def _dialect_word(name: str) -> str | None:
    lowered = name.strip("_").lower()
    return next((word for word in (lowered, *lowered.split("_")) if word in WORDS), None)


def _packed(path: str, code: str) -> Iterator[Finding]:
    for match in _PACKED.finditer(code):
        yield Finding(path, code.count("\n", 0, match.start()) + 1, "packed", "*(...)", "keyword arguments")


def _phrases(path: str, text: str) -> Iterator[Finding]:
    for phrase, better in _PHRASES.items():
        for match in phrase.finditer(text):
            if not text[match.start() - 1 : match.start()].isalnum():
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(path, line, "phrases", " ".join(match[0].strip('"').split()), better)


def sources() -> dict[str, str]:
    """The files that the rules are for, by path."""
    paths = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")
    ]
    paths += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def repeated_classes(files: dict[str, str]) -> dict[str, dict[str, list[str]]]:
    """Classes and types that a package defines more than once: by package and name, the files."""
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, source in files.items():
        if path.endswith(".py"):
            package = "/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]
            for match in _CLASS.finditer(source):
                places[package][match[1] or match[2]].append(path)
    return {
        package: {name: paths for name, paths in sorted(names.items()) if len(paths) > 1}
        for package, names in sorted(places.items())
    }


def counts(findings: list[Finding]) -> dict[str, dict[str, int]]:
    """The number of findings by path and rule."""
    numbers = Counter((finding.path, finding.rule) for finding in findings)
    by_path: dict[str, dict[str, int]] = {}
    for (path, rule), number in sorted(numbers.items()):
        by_path.setdefault(path, {})[rule] = number
    return by_path


def main() -> None:
    """Write the list anew. Raises SystemExit if it would grow."""
    files = sources()
    by_path = counts([finding for path, source in files.items() for finding in check_file(path, source)])
    repeated = {package: len(names) for package, names in repeated_classes(files).items() if names}
    total = sum(sum(rules.values()) for rules in by_path.values()) + sum(repeated.values())
    if LIST.exists():
        before = json.loads(LIST.read_text())["total"]
        if total > before:
            raise SystemExit(f"{total} findings, {before} are allowed: the list may only shrink")
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(rules)}" for path, rules in by_path.items())
    classes = json.dumps(repeated, indent=2).replace("\n", "\n ")
    LIST.write_text(f'{{"total": {total},\n "repeated classes": {classes},\n "files": {{\n{lines}\n}}}}\n')
    print(total)


if __name__ == "__main__":
    main()
