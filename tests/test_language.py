"""The language of names and prose: what `support.language` refuses may only become less, file by file."""

import json
from pathlib import Path

import pytest
from support import language
from support.language import check_file, counts, repeated_classes, sources

SHRINK = "PYTHONPATH=tests .venv/bin/python -m support.language"

REFUSED = {
    # Lines of a module: the line, the text and the rule of the finding.
    "found = read()\n": (1, "found", "names"),
    "def f() -> None:\n    a, told = 1, 2\n": (2, "told", "names"),
    "def f(said: str) -> None: ...\n": (1, "said", "names"),
    "def f(\n    limit: int,\n    wanted: int = 1,\n) -> None: ...\n": (3, "wanted", "names"),
    "async def _of_one() -> None: ...\n": (1, "_of_one", "names"),
    "def look() -> None: ...\n": (1, "look", "names"),
    "class _Seen: ...\n": (1, "_Seen", "names"),
    "class Batch:\n    brought: int\n": (2, "brought", "names"),
    "for each in rows:\n    print(each)\n": (1, "each", "names"),
    "for number, each in enumerate(rows):\n    print(each)\n": (1, "each", "names"),
    "names = [each.name for each in rows]\n": (1, "each", "names"),
    "names = [\n    each.name\n    for each in rows\n    if each.name\n]\n": (3, "each", "names"),
    "names = {key: row for key, (_, found) in rows}\n": (1, "found", "names"),
    "is_valid = all(row for rows in (a, b) for said in rows)\n": (1, "said", "names"),
    "text = f\"{', '.join(each for each in rows)}\"\n": (1, "each", "names"),
    "with open(path) as held:\n    pass\n": (1, "held", "names"),
    "if (gone := ids - rows):\n    pass\n": (1, "gone", "names"),
    "key = lambda each: each.name\n": (1, "each", "names"),
    "call(*(a, b))\n": (1, "*(...)", "packed"),
    "rows = (\n    *(row.name, row.size),\n)\n": (2, "*(...)", "packed"),
    '"""A run is no batch."""\n': (1, "is no batch", "phrases"),
    '"""Of each key the newest row."""\n': (1, "Of each", "phrases"),
    'raise UserError("nobody\\n" "sends it")\n': (1, "nobody", "phrases"),
    "# It is built anew.\n": (1, "anew", "phrases"),
    '"""Rows that are not there any\nmore."""\n': (1, "any more", "phrases"),
}
ACCEPTED = (
    "names = [\n    each.name\n    for row in given\n    if found\n]\n",
    'text = f"{row} is for each row in turn"\ntext = "for each in"\n',
    "lookup = foundation = owner_id = 1\n",
    "call(found=1)\nprint(*rows, *list(rows))\nsize = 2 * (a + b)\n",
    "size = sum(*(a + b for a, b in pairs))\n",
    "row.found = 1\nif found == said:\n    pass\n",
    'text = "found = 1"  # no longer "each: int"\n',
    '"""There is no batch, and it is no longer open."""\n',
)


def test_no_file_has_more_dialect_than_the_list_allows() -> None:
    files = sources()
    findings = [finding for path, source in files.items() for finding in check_file(path, source)]
    allowed = json.loads(language.LIST.read_text())
    by_path, lines = counts(findings), []
    for path, rules in by_path.items():
        for rule, number in rules.items():
            if number > (limit := allowed["files"].get(path, {}).get(rule, 0)):
                lines += [f"{path} may have {limit} of the rule {rule!r}, and has {number}:"]
                lines += [f"  {one}" for one in findings if (one.path, one.rule) == (path, rule)]
    for package, names in repeated_classes(files).items():
        if len(names) > (limit := allowed["repeated classes"].get(package, 0)):
            lines += [f"{package} may define {limit} classes more than once, and defines {len(names)}:"]
            lines += [f"  {name}: {', '.join(paths)}" for name, paths in names.items()]
    assert not lines, "\n".join(["Write it in plain English:", *lines])
    repeated = {package: len(names) for package, names in repeated_classes(files).items() if names}
    is_same = (by_path, repeated) == (allowed["files"], allowed["repeated classes"])
    assert is_same, f"some files have less dialect than the list allows: shrink it with {SHRINK}"


@pytest.mark.parametrize("source", REFUSED)
def test_dialect_is_refused(source: str) -> None:
    line, text, rule = REFUSED[source]
    (finding,) = check_file("pulse_api/a.py", source)
    assert (finding.line, finding.text, finding.rule) == (line, text, rule)
    assert str(finding).startswith(f"pulse_api/a.py:{line}: {text} (")


@pytest.mark.parametrize("source", ACCEPTED)
def test_plain_code_is_accepted(source: str) -> None:
    assert not check_file("pulse_api/a.py", source)


def test_a_page_is_prose() -> None:
    (finding,) = check_file("docs/a.md", "One\n\nfound = each, and it goes on.\n")
    assert (finding.line, finding.text, finding.better) == (3, "goes on", "continues")


def test_a_class_is_unique_in_its_package() -> None:
    files = {
        "pulse_pipelines/pipes/a.py": "class Plan: ...\n",
        "pulse_pipelines/pipes/files/b.py": "Plan = dict[str, int]\n",
        "pulse_pipelines/sql/c.py": "class Plan: ...\n",
    }
    assert repeated_classes(files)["pulse_pipelines/pipes"] == {"Plan": list(files)[:2]}
    assert not repeated_classes(files)["pulse_pipelines/sql"]


def test_the_list_only_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "language.json"
    monkeypatch.setattr(language, "LIST", path)
    monkeypatch.setattr(language, "sources", lambda: {"chaos/a.py": "found = 1\n"})
    language.main()
    assert json.loads(path.read_text())["files"] == {"chaos/a.py": {"names": 1}}
    monkeypatch.setattr(language, "sources", lambda: {"chaos/b.py": "found = 1\nsaid = 2\n"})
    with pytest.raises(SystemExit, match="only shrink"):
        language.main()
