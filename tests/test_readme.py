"""What the documentation tells a reader to type exists, and its example works from end to end."""

import json
import re
import shlex
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.ingest import Owner, ingest
from typer.testing import CliRunner

from chaos.waiting import PATIENCE_S, wait
from pulse_api import cli
from pulse_api.cli.parts import imported
from pulse_pipelines import registry
from pulse_pipelines.monitoring.trace import sent
from pulse_pipelines.query.preview import preview
from pulse_resources.settings import Settings

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]
FENCE = re.compile(r"^( *)(```+|~~~+)[ \t]*(\w*)[^\n]*\n(.*?)^\1\2[ \t]*$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(?<!`)`((?:make|pulse)(?: [^`]*)?)`(?!`)")
SHELL = {"", "sh", "bash", "shell", "console"}
TARGETS = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each code block."""
    return [(match[3], match[4]) for match in FENCE.finditer(page.read_text())]


def typed(page: Path) -> Iterator[list[str]]:
    """Every command of the page, in words: in shell blocks, and between backquotes in the text."""
    text = page.read_text()
    lines = [line for kind, block in blocks(page) if kind in SHELL for line in block.splitlines()]
    lines += INLINE.findall(FENCE.sub("", text))
    for line in lines:
        for part in re.split(r"&&|\|\||[;|]", line.strip().removeprefix("$ ").replace("\\", "")):
            words = words_of(part)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                del words[0]
            if words:
                yield words


def words_of(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a drawing, or a sentence with an apostrophe
        return []


def made(pages: list[Path]) -> list[str]:
    found = (words for page in pages for words in typed(page) if words[0] == "make")
    return sorted({word for words in found for word in words[1:] if re.fullmatch(r"[a-z][\w-]*", word)})


def pulsed(pages: list[Path]) -> list[tuple[str, ...]]:
    found = (words for page in pages for words in typed(page) if Path(words[0]).name == "pulse")
    return sorted({tuple(words[1:]) for words in found})


def test_the_readme_names_the_two_commands() -> None:
    assert {"demo", "test"} <= set(made([README]))
    assert any(words[0] == "reconcile" for words in pulsed([README]))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=str)
def test_a_page_has_no_leftovers_of_a_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", made(PAGES))
def test_a_make_target_exists(target: str) -> None:
    assert target in TARGETS


@cache
def explains_itself(*path: str) -> bool:
    return CliRunner().invoke(cli.app, [*path, "--help"]).exit_code == 0


@pytest.mark.parametrize("words", pulsed(PAGES), ids=" ".join)
def test_a_pulse_command_exists_and_takes_these_arguments(words: tuple[str, ...]) -> None:
    part: Any = imported(cli.app)
    path: list[str] = []
    rest = list(words)
    while rest and rest[0] in getattr(part, "commands", {}):
        path.append(rest.pop(0))
        part = part.commands[path[-1]]
    assert explains_itself(*path)
    if hasattr(part, "commands") and not part.invoke_without_command:
        assert not rest, f"pulse {' '.join(path)} has no command {rest[0]}"
    elif rest:
        part.make_context(part.name, rest)  # a wrong option or argument is a usage error


def test_every_make_target_is_explained() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## \S", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(phony[1].split()) == explained


VARIABLE = re.compile(r"\bPULSE_[A-Z0-9_]+\b")
NO_SETTINGS = {"PULSE_HOME", "PULSE_KEY", "PULSE_TEST_HOME", "PULSE_FAIL_POINT", "PULSE_SOURCE__"}


@pytest.mark.parametrize(
    "name", sorted({name for page in PAGES for name in VARIABLE.findall(page.read_text())} - NO_SETTINGS)
)
def test_a_variable_is_a_setting(name: str) -> None:
    model: Any = Settings
    for part in name.removeprefix("PULSE_").lower().split("__"):
        assert issubclass(model, BaseModel)
        assert part in model.model_fields, f"{model.__name__} has no field {part}"
        model = model.model_fields[part].annotation


def quickstart() -> list[str]:
    """The commands from the first tenant on until nothing is left to see, as somebody types them."""
    section = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)
    (text,) = (each for each in section if "pulse tenant create" in each)
    found = (match[4] for match in FENCE.finditer(text.partition("**When something")[0]) if match[3] in SHELL)
    lines = [line for block in found for line in block.splitlines()]
    return lines[next(at for at, line in enumerate(lines) if "pulse tenant create" in line) :]


def while_it_lands(owner: Owner, collect: Callable[[], str]) -> str:
    """What a command says that waits for its events, with a batch that takes them."""
    before = sent.marks(owner.tenant)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        wait(lambda: running.done() or sent.marks(owner.tenant) != before, "nothing was sent")
        ingest(owner)
        return running.result(timeout=PATIENCE_S)


def test_the_quickstart_works_from_the_first_line_to_the_last(
    api_service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, for a tenant of our own: nothing has to be made or known that is not on the page."""
    slug = f"t{uuid.uuid4().hex[:10]}"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")
    said: dict[str, str] = {}

    def typed_in(line: str) -> str:
        result = CliRunner().invoke(cli.app, words_of(line)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}: {result.output}"
        return result.stdout

    for line in quickstart():
        command = re.sub(r"\bacme\b", slug, line)
        kind = " ".join(words_of(line)[1:3])
        if kind in ("tail acme", "status"):  # the one ends never, the other is about other tests, too
            said[kind] = ""
        elif given := re.match(r"export (\w+)=\$\((.*)\)", command):
            monkeypatch.setenv(given[1], typed_in(given[2]).strip())
        elif kind == "collect acme":
            owner = Owner(registry.find_tenant(slug))
            said[kind] = while_it_lands(owner, partial(typed_in, command))
        else:
            said[kind] = typed_in(command)
    assert {"schema check", "collect acme", "trace acme", "tail acme", "batch list", "status"} <= said.keys()
    assert "1 landed, 0 did not" in said["collect acme"]
    assert said["trace acme"].startswith("landed")
    (example,) = [json.loads(block) for kind, block in blocks(README) if kind == "json"]
    assert example == json.loads((ROOT / "docs" / "examples" / "order.json").read_text())
    (row,) = preview(owner.tenant, example["dataset"], 10).to_pylist()
    assert (row["id"], row["trace_id"]) == (example["event_id"], example["trace_id"])
    assert {name: row[name] for name in example["data"]} == example["data"]
    assert example["event_id"] in said["preview acme"]
