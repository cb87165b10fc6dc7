"""The shorter part of `make harm`: some of its attacks, seconds each, beside a neighbour."""

import shutil
from collections.abc import Iterator
from concurrent.futures import Executor
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaos.harm import hostile, memory, page as pages, people
from chaos.harm.attack import Target, carry_out
from chaos.harm.attacks import ATTACKS
from chaos.harm.command import PAGE
from chaos.harm.measure import Result, Span, attacker, measure
from chaos.harm.neighbour import RATES, Neighbour, living
from pulse_resources.settings import Settings

SECONDS, QUIET_S = 2.0, 0.5
LONGEST_MS = dict.fromkeys(RATES, 2_000.0)
"""Of a machine that also runs other tests: far from what the page promises, and from what was before."""
CHOSEN = (
    "8 MB of `[[],[],…]`",
    "schema that is not one of 30,000 floats, in a loop",
    "4 MiB of empty gzip members",
    "1,005 half-sent headers, again and again",
    "60 previews at once of 10,000 rows",
    "a key mints keys with scopes that it has not",
)


@pytest.fixture(scope="module")
def target(stack: Settings) -> Target:
    return people.make_attacker(room=False)[1]


@pytest.fixture(scope="module")
def neighbour(stack: Settings) -> Iterator[Neighbour]:
    with living(people.make_neighbour()[1]) as lives:
        lives.window(1.0)
        yield lives


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    with attacker() as pool:
        yield pool


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CHOSEN)
def test_an_attack_harms_no_neighbour(
    name: str, target: Target, neighbour: Neighbour, process: Executor
) -> None:
    (attack,) = (candidate for candidate in ATTACKS if candidate.name == name)
    with memory.watched() as before:
        pass  # sessions of other tests have Python workers of their own, which stay for two minutes
    result = measure(attack, target, neighbour, process, SECONDS, QUIET_S)
    grown = result.peaks_mib.get(memory.WORKERS, 0.0) - before.get(memory.WORKERS, 0.0)
    peaks = {**result.peaks_mib, memory.WORKERS: grown}
    assert result.model_copy(update={"peaks_mib": peaks}).findings(LONGEST_MS) == []
    assert result.beside.requests / SECONDS > 0.5 * result.quiet.requests / QUIET_S > 0
    assert result.peaks_mib["api"] > 50


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name",
    [
        "datasets of new names, up to the limit",
        "SQL at which DuckDB fails",
        "a page of another site asks /mcp",
    ],
)
def test_an_attack_gets_answers_that_are_clear(name: str, target: Target, process: Executor) -> None:
    (attack,) = (candidate for candidate in ATTACKS if candidate.name == name)
    answers = process.submit(carry_out, attack.act, target, 1.0).result()
    assert attack.wrong(answers) == []
    assert answers.keys() - {"429 too-many-requests", "503 busy"}


# what measures notices what it must -------------------------------------------------------------


def span(p99_ms: float = 10.0, settled_s: float = 30.0, **failures: int) -> Span:
    return Span(
        began=0,
        ended=1,
        requests=100,
        p99_ms=dict.fromkeys(RATES, p99_ms),
        failures=failures,
        settled_s=settled_s,
    )


RESULT = Result(
    name="an attack",
    key="none",
    answers={"413 too-large": 3},
    wrong=[],
    quiet=span(),
    beside=span(),
    peaks_mib={},
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ""),
        ({"beside": span(24.9)}, ""),  # below the floor
        ({"quiet": span(40), "beside": span(59)}, ""),
        ({"quiet": span(40), "beside": span(61)}, "p99 of collect"),
        ({"beside": span(59), "usual_ms": dict.fromkeys(RATES, 40.0)}, ""),  # the window before had luck
        ({"beside": span(61), "usual_ms": dict.fromkeys(RATES, 40.0)}, "p99 of collect"),
        ({"beside": span(collect=1)}, "the neighbour got 1 × collect"),
        ({"quiet": span(preview=1)}, "the neighbour got 1 × preview"),
        ({"beside": span(settled_s=61)}, "settled"),
        ({"peaks_mib": {"api": 1_025.0}}, "api reached"),
        ({"landing": ["1 accepted events are lost"]}, "lost"),
        ({"wrong": ["the attacker got 1 × 500 failed"]}, "500"),
    ],
)
def test_a_broken_bound_is_a_finding(changed: dict[str, object], expected: str) -> None:
    findings = RESULT.model_copy(update=changed).findings()
    assert bool(findings) == bool(expected)
    assert all(expected in finding for finding in findings[:1])


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ({"413 too-large": 9, "closed": 1}, False),
        ({}, True),
        ({"202": 1, "413 too-large": 9}, True),
        ({"413 unclear": 1}, True),
        ({"503 busy, unclear when to come again": 1}, True),
        ({"500 failed": 1}, True),
    ],
)
def test_an_unclear_answer_to_an_attack_is_a_finding(seen: dict[str, int], wrong: bool) -> None:
    (bomb,) = (candidate for candidate in ATTACKS if candidate.name == "8 MB of `[[],[],…]`")
    assert bool(bomb.wrong(seen)) == wrong


@pytest.mark.parametrize(
    ("service", "command", "part"),
    [
        ("api", "python -m pulse_api.http.server", "api"),
        ("api", "python -B -c from multiprocessing.forkserver import main", "api: workers"),
        ("api", "python -I -m pulse_pipelines.sql.template", "api: queries"),
        ("dagster-code", "python -B -c from multiprocessing.forkserver import main", "Dagster: runs"),
        ("api", "python -m pulse_pipelines.validation.worker_pool 7", "judging workers"),
        ("spark", "python -m pulse_pipelines.validation.worker_pool 7", "judging workers"),
        ("spark", "python -m pulse_pipelines.runtime.spark_daemon pyspark.worker", "Spark: Python workers"),
    ],
)
def test_memory_is_that_of_the_right_part(service: str, command: str, part: str) -> None:
    assert memory.part(service, command) == part
    assert part in memory.BOUNDS_MIB


def test_the_page_keeps_the_last_result_of_each_attack(tmp_path: Path) -> None:
    file = tmp_path / "isolation.md"
    other = RESULT.model_copy(update={"name": "another"})
    pages.keep(file, [RESULT, other], ["another", "an attack"])
    broken = RESULT.model_copy(update={"beside": span(61, collect=2)})
    pages.keep(file, [broken], ["another", "an attack", "one that was never run"])
    lines = [line for line in file.read_text().splitlines() if line.startswith("| an")]
    assert [line.split(" | ")[0] for line in lines[:2]] == ["| another", "| an attack"]
    assert "| 3 × 413 too-large | 10, 10, 1.0 × |" in lines[0]
    assert "10, 61, 6.1 ×" in lines[1]
    assert "the neighbour got 2 × collect, beside it; p99 of collect" in lines[1]


def test_stored_results_can_be_read_and_are_those_of_the_page(tmp_path: Path) -> None:
    """A member of results was renamed, and an hour of attacks ended with an error instead of a page."""
    copy = tmp_path / PAGE.name
    shutil.copy(PAGE.with_suffix(".json"), copy.with_suffix(".json"))
    pages.keep(copy, [], [attack.name for attack in ATTACKS])
    assert copy.read_text() == PAGE.read_text()


def test_a_page_that_unpacks_to_much_is_whole() -> None:
    """Otherwise what reads it would end before it unpacks anything."""
    content = hostile.page(3 * 2**20)
    assert len(content) < 1_000
    assert pq.read_table(BytesIO(content)).column("id").to_pylist() == [0] * (3 * 2**17)
