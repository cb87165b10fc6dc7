"""What the documentation tells a reader to type exists, and its example works from end to end."""

import re
import shlex
import shutil
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.here import ingest_here as ingest
from support.ingest import Owner
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


def make_targets(pages: list[Path]) -> list[str]:
    commands = (words for page in pages for words in typed(page) if words[0] == "make")
    return sorted({word for words in commands for word in words[1:] if re.fullmatch(r"[a-z][\w-]*", word)})


def pulsed(pages: list[Path]) -> list[tuple[str, ...]]:
    commands = (words for page in pages for words in typed(page) if Path(words[0]).name == "pulse")
    return sorted({tuple(words[1:]) for words in commands})


def test_the_readme_names_the_two_commands() -> None:
    assert {"demo", "test"} <= set(make_targets([README]))
    assert any(words[0] == "reconcile" for words in pulsed([README]))


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=str)
def test_a_page_has_no_leftovers_of_a_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", make_targets(PAGES))
def test_a_make_target_exists(target: str) -> None:
    assert target in TARGETS


@cache
def explains_itself(*path: str) -> bool:
    return CliRunner().invoke(cli.app, [*path, "--help"]).exit_code == 0


@pytest.mark.parametrize("words", pulsed(PAGES), ids=" ".join)
def test_a_pulse_command_exists_and_takes_these_arguments(words: tuple[str, ...]) -> None:
    part: Any = imported(cli.app)
    path: list[str] = []
    remaining_words = list(words)
    while remaining_words and remaining_words[0] in getattr(part, "commands", {}):
        path.append(remaining_words.pop(0))
        part = part.commands[path[-1]]
    assert explains_itself(*path)
    if hasattr(part, "commands") and not part.invoke_without_command:
        assert remaining_words in ([], ["--help"]), (
            f"pulse {' '.join(path)} has no command {remaining_words[0]}"
        )
    elif remaining_words:
        part.make_context(part.name, remaining_words)  # a wrong option or argument is a usage error


def test_every_make_target_is_explained() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    explained = set(re.findall(r"^([a-z-]+):.*## \S", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(phony[1].split()) == explained


VARIABLE = re.compile(r"\bPULSE_[A-Z0-9_]+\b")
NO_SETTINGS = {
    "PULSE_HOME",
    "PULSE_KEY",
    "PULSE_READ_KEY",
    "PULSE_URL",
    "PULSE_TEST_HOME",
    "PULSE_FAIL_POINT",
    "PULSE_SOURCE__",
}


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
    """The commands of a first event, as somebody types them; one may have several lines."""
    section = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)
    (text,) = (part for part in section if "pulse tenant create" in part)
    lines = "".join(match[4] for match in FENCE.finditer(text) if match[3] in SHELL).splitlines()
    commands = [""]
    for line in lines[next(at for at, line in enumerate(lines) if "pulse tenant create" in line) :]:
        commands[-1] += line
        if words_of(commands[-1]):  # all quotation marks are closed
            commands.append("")
    assert commands.pop() == ""
    return commands


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
    outputs: dict[str, list[str]] = defaultdict(list)

    def shell(command: str) -> str:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def pulse(line: str, stdin: str | None = None, code: int = 0) -> str:
        result = CliRunner().invoke(cli.app, words_of(line)[1:], stdin, catch_exceptions=False)
        assert result.exit_code == code, f"{line}: {result.output}"
        return result.stdout

    for line in quickstart():
        command = re.sub(r"\bshop\b", slug, line)
        if assigned := re.match(r"(?:export )?(\w+)=\$\((.*)\)", command):
            name, value = assigned.groups()
            monkeypatch.setenv(name, pulse(value).strip() if value.startswith("pulse ") else shell(value))
            continue
        prefix, _, command = command.rpartition(" | ")
        kind = " ".join(words_of(command)[1:3]).replace(slug, "shop")
        if kind == "status":  # it is about other tests, too
            continue
        if kind == "collect shop":
            owner = Owner(registry.find_tenant(slug))
            does_not_land = kind in outputs
            output = while_it_lands(owner, partial(pulse, command, shell(prefix), int(does_not_land)))
        else:
            output = pulse(command)
        outputs[kind].append(output)
    assert "1 landed, 0 did not" in outputs["collect shop"][0]
    assert "0 landed, 1 did not" in outputs["collect shop"][1]
    assert outputs["trace shop"][0].startswith("landed")
    assert "o-1" in outputs["preview shop"][0]
    assert "schema_violation" in outputs["dlq list"][0]
    assert {"schema check", "schema try", "reconcile shop", "batch list"} <= outputs.keys()
    (row,) = preview(owner.tenant, "orders", 10).to_pylist()
    assert (row["id"], row["country"], row["amount"]) == ("o-1", "DE", 12.5)


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in words}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_a_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        link = match[1] or match[2]
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_set_up_leaves_a_linked_environment_alone(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / ".venv").symlink_to(other)
    make = shutil.which("make")
    assert make
    done = subprocess.run([make, "setup"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, list(other.iterdir())) == (2, [])
    assert "remove the link" in done.stderr
