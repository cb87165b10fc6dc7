"""Break Pulse in every way that it promises to survive, and check what became of every event.

Each command makes a stack of its own in .pulse-chaos and removes it afterwards. All print their seed:
with it the same events are sent, and the same harm is done in the same order.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql.connect.session import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos import oracle, report
from chaos.oracle import Finding
from chaos.report import Result
from chaos.scenarios import answers, noise, outages, pauses, writers
from chaos.scenarios import kills as killing
from chaos.stack import Stack, stack
from pulse_resources.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console()
HOME = Path(".pulse-chaos").absolute()
PAGE = Path("docs/chaos.md")
KILLS, CUTS, PAUSES, MINUTES = 500, 20, 20, 30.0
NOISE_LIMIT = 1.5
"""How much longer, at p95, the others' events may wait beside noisy neighbours."""
FLUSH_S = "3"
"""Of `ingest.flush_seconds`, where Dagster runs the batches."""
Seed = Annotated[
    int | None, typer.Option(help="Of the events and the harm; drawn if not given.", show_default=False)
]


@app.command()
def kills(count: Annotated[int, typer.Option(help="Kills.")] = KILLS, seed: Seed = None) -> None:
    """SIGKILL of runs at every step and at random moments."""
    with stack(HOME, dagster=False):
        _end([_kills(count, _drawn(seed))])


@app.command()
def cuts(count: Annotated[int, typer.Option(help="Lost answers.")] = CUTS, seed: Seed = None) -> None:
    """The answer to COMMIT is lost while another writer commits."""
    with stack(HOME, dagster=False) as harmed:
        _end([_cuts(harmed, count, _drawn(seed))])


@app.command("pauses")
def pauses_(count: Annotated[int, typer.Option(help="Stopped runs.")] = PAUSES, seed: Seed = None) -> None:
    """Runs that stop, are overtaken, and go on."""
    with stack(HOME, dagster=False):
        _end([_pauses(count, _drawn(seed))])


@app.command("writers")
def writers_(minutes: Annotated[float, typer.Option(help="How long.")] = MINUTES, seed: Seed = None) -> None:
    """Batches, compaction, expiry, sweeps and backfills at once."""
    with stack(HOME, dagster=False):
        _end([_writers(minutes, _drawn(seed))])


@app.command("outages")
def outages_(
    only: Annotated[str, typer.Option(help="Part of the names of those to run.")] = "", seed: Seed = None
) -> None:
    """Services that are gone, slow, hanging, cut or killed, while Dagster runs everything."""
    with stack(HOME, dagster=True, PULSE_INGEST__FLUSH_SECONDS=FLUSH_S) as harmed:
        _end(_outages(harmed, only, _drawn(seed)))


@app.command("noise")
def noise_(seed: Seed = None) -> None:
    """Noisy neighbours: do the others stay as fresh?"""
    with stack(HOME, dagster=True, PULSE_INGEST__FLUSH_SECONDS=FLUSH_S):
        _end([_noise(_drawn(seed))])


@app.command("all")
def all_(seed: Seed = None) -> None:
    """Everything, and the page docs/chaos.md about it."""
    results: list[Result] = []
    try:
        results.extend(map(_show, _everything(_drawn(seed))))
    finally:
        report.write(PAGE, results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def _everything(seed: int) -> Iterator[Result]:
    with stack(HOME, dagster=False) as harmed:
        yield _kills(KILLS, seed)
        yield _cuts(harmed, CUTS, seed)
        yield _pauses(PAUSES, seed)
        yield _writers(MINUTES, seed)
    with stack(HOME, dagster=True, PULSE_INGEST__FLUSH_SECONDS=FLUSH_S) as harmed:
        yield _noise(seed)
        yield from _outages(harmed, "", seed)


def _kills(count: int, seed: int) -> Result:
    with _progress("kills", count) as told:
        began = time.monotonic()
        killed = killing.run(seed, count, told)
    pairs = zip(killed.sent, killed.calm, strict=True)
    differing = [
        Finding("differs from the run without faults", a.tenant.slug, f"and {b.tenant.slug}")
        for a, b in pairs
        if oracle.content(a.tenant) != oracle.content(b.tenant)
    ]
    return Result(
        "kill -9 of the run",
        f"python -m chaos kills --count {count} --seed {seed}",
        f"{killed.places.total()} kills",
        killed.sent,
        [*oracle.judge([*killed.sent, *killed.calm], _spark()), *differing],
        time.monotonic() - began,
        places=dict(killed.places),
    )


def _cuts(harmed: Stack, count: int, seed: int) -> Result:
    with _progress("answers cut", count) as told:
        began = time.monotonic()
        sent = answers.run(harmed, seed, count, told)
    return Result(
        "answer to COMMIT lost, another writer in between",
        f"python -m chaos cuts --count {count} --seed {seed}",
        f"{count} answers",
        sent,
        oracle.judge(sent, _spark()),
        time.monotonic() - began,
    )


def _pauses(count: int, seed: int) -> Result:
    with _progress("pauses", count) as told:
        began = time.monotonic()
        sent = pauses.run(seed, count, told)
    return Result(
        "run stopped, overtaken, continued",
        f"python -m chaos pauses --count {count} --seed {seed}",
        f"{count} pauses",
        sent,
        oracle.judge(sent, _spark()),
        time.monotonic() - began,
    )


def _writers(minutes: float, seed: int) -> Result:
    began = time.monotonic()
    with _progress("batches", None) as told:
        wrote = writers.run(seed, minutes * 60, told)
    return Result(
        "batches, compaction, expiry, sweeps and backfills at once",
        f"python -m chaos writers --minutes {minutes:g} --seed {seed}",
        f"{minutes:g} minutes",
        wrote.sent,
        oracle.judge(wrote.sent, _spark()),
        time.monotonic() - began,
        places=dict(wrote.commits),
    )


def _noise(seed: int) -> Result:
    began = time.monotonic()
    found = noise.run(seed)
    findings = oracle.judge(found.sent, _spark())
    ratio = found.noisy_s[1] / found.calm_s[1]
    if ratio > NOISE_LIMIT:
        findings.append(Finding("the others waited longer", "all", f"p95 {ratio:.2f} times as long"))
    calm, noisy = (f"p50 {each[0]:.1f} s, p95 {each[1]:.1f} s" for each in (found.calm_s, found.noisy_s))
    return Result(
        "a tenant floods (100 ×), one is all bad, one has lost its table",
        f"python -m chaos noise --seed {seed}",
        f"freshness of the others: {calm} before; {noisy} meanwhile",
        found.sent,
        findings,
        time.monotonic() - began,
    )


def _outages(harmed: Stack, only: str, seed: int) -> Iterator[Result]:
    for name, fault in outages.FAULTS.items():
        if only.lower() not in name.lower():
            continue
        command = f'python -m chaos outages --only "{name}" --seed {seed}'
        began = time.monotonic()
        console.print(f"{name} ...")
        try:
            survived = outages.run(harmed, fault, seed)
            findings = oracle.judge(survived.sent, _spark())
        except Exception as error:
            took = time.monotonic() - began
            yield Result(name, command, "", [], [], took, error=f"{type(error).__name__}: {error}")
            return  # the stack is not one to go on with
        took = time.monotonic() - began
        harm = f"{survived.lasted_s:.0f} s"
        yield Result(name, command, harm, survived.sent, findings, took, recovered_s=survived.recovered_s)


def _drawn(seed: int | None) -> int:
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    console.print(f"seed {seed}")
    return seed


def _spark() -> SparkSession:
    return SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()


@contextmanager
def _progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def _show(result: Result) -> Result:
    line = f"{'passed' if result.passed else 'FAILED'}: {result.name}: {result.harm}, "
    line += f"{result.events:,} events, {result.took_s:.0f} s"
    if result.recovered_s is not None:
        line += f", recovered in {result.recovered_s:.1f} s"
    console.print(line)
    if result.error:
        console.print(f"  {result.error}", markup=False)
    for finding in result.findings:
        console.print(f"  {finding.kind} [tenant={finding.tenant}]: {finding.detail}", markup=False)
    return result


def _end(results: Iterable[Result]) -> None:
    """Show each as soon as it is there; exit code 1 when one failed."""
    passed = [_show(result).passed for result in results]
    if not all(passed):
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m chaos")
