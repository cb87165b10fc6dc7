"""Run scenarios of faults, and check what became of every event.

Each run makes a new stack in .pulse-chaos and removes it afterwards. It prints its seed, which reproduces the
events and the order of the faults; then how far each scenario is: as a bar on a terminal, else in a line a
minute.
"""

import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from chaos import oracle, report
from chaos.harm import command as harm
from chaos.hosts import command as hosts
from chaos.operators.schedule import Schedule
from chaos.oracle import Finding
from chaos.progress import progress
from chaos.report import Result
from chaos.scenario import Scenario
from chaos.scenarios import SCENARIOS, busy, operators
from chaos.stack import Kind, Stack, stack
from chaos.upgrade import command as upgrade
from pulse_resources import spark

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.add_typer(harm.app, name="harm")
app.add_typer(hosts.app, name="hosts")
app.add_typer(upgrade.app, name="upgrade")
console = Console(highlight=False)
HOME = Path(".pulse-chaos").absolute()
PAGE = Path("docs/chaos.md")
QUICK = {"PULSE_INGEST__FLUSH_SECONDS": "3"}
SETTINGS: dict[Kind, dict[str, str]] = {
    Kind.PLAIN: {},
    Kind.DAGSTER: QUICK,
    Kind.DEFAULTS: {},
    Kind.CLOCKS: QUICK | {"PULSE_INGEST__ATTEMPT_SECONDS": "60"},  # do not wait an hour
}


@app.command("list")
def list_() -> None:
    """What is done, and how much of it."""
    for scenario in SCENARIOS:
        amount = f" [dim]({scenario.amount:g} {scenario.unit})" if scenario.unit else ""
        console.print(f"{scenario.name}{amount}", soft_wrap=True)


@app.command()
def run(
    only: Annotated[list[str], typer.Option(help="Part of a name; may be given again.")] = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option(help="Of the events and the harm; drawn if not given.", show_default=False)
    ] = None,
    share: Annotated[float, typer.Option(help="Of the harm that `list` shows.", min=0.001)] = 1.0,
    processes: Annotated[
        int, typer.Option(help="That compute beside the stack, in the scenario of a busy machine.", min=1)
    ] = busy.PROCESSES,
    page: Annotated[
        bool, typer.Option("--page", help=f"Keep the results in {PAGE}, beside those of others.")
    ] = False,
) -> None:
    """Do harm, and print what became of it; exit code 1 when anything is not as it must be.

    Example: python -m chaos run --only kill --only postgres --share 0.1
    """
    chosen = [s for s in SCENARIOS if not only or any(text.lower() in s.name.lower() for text in only)]
    if not chosen:
        raise typer.BadParameter("no scenario has such a name; see `python -m chaos list`")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    console.print(f"seed {seed}")
    os.environ[busy.HOW_MANY] = str(processes)
    passed = []
    for result in _results(chosen, seed, share):
        _show(result)
        passed.append(result.passed)
        if page:
            report.keep(PAGE, result, [scenario.name for scenario in SCENARIOS], report.circumstances())
    if not all(passed):
        raise typer.Exit(1)


@app.command()
def repeat(
    file: Annotated[Path, typer.Argument(help="A schedule that `run` kept.", exists=True, dir_okay=False)],
    times: Annotated[int, typer.Option(help="At most so often, until it goes wrong.", min=1)] = 3,
) -> None:
    """Carry a schedule of the operators' scenario out again; exit code 1 when it goes wrong.

    Example: python -m chaos repeat .pulse-schedules/7-least.json
    """
    schedule = Schedule.read(file)
    console.print(str(schedule), markup=False, soft_wrap=True)
    with stack(HOME, Kind.PLAIN, **SETTINGS[Kind.PLAIN]):
        for number in range(1, times + 1):
            episode = operators.carried_out(schedule)
            console.print(f"{number}: {len(findings := episode.findings)} findings")
            for finding in findings:
                console.print(f"  {finding}", markup=False, soft_wrap=True)
            if findings:
                raise typer.Exit(1)


def _results(chosen: Iterable[Scenario], seed: int, share: float) -> Iterator[Result]:
    """Results of scenarios, which share a stack of the same kind unless one may have damaged it."""
    remaining = sorted(chosen, key=lambda scenario: scenario.on)
    while remaining:
        kind = remaining[0].on
        console.print(f"starting a stack: {kind.name.lower()}")
        with stack(HOME, kind, **SETTINGS[kind]) as harmed:
            while remaining and remaining[0].on == kind:
                yield (result := _result(remaining.pop(0), harmed, seed, share))
                if result.error:
                    break


def _result(scenario: Scenario, harmed: Stack, seed: int, share: float) -> Result:
    amount = max(1, scenario.amount * share)
    command = f'python -m chaos run --only "{scenario.name}" --seed {seed}'
    if amount != scenario.amount:
        command += f" --share {share:g}"
    began = time.monotonic()
    try:
        deadlocks = oracle.deadlocks()
        with progress(console, scenario, amount) as report_progress:
            outcome = scenario.run(harmed, seed, amount, report_progress)
            with spark.session() as session:
                findings = [*outcome.findings, *oracle.find_violations(outcome.sent, session)]
        if (more := oracle.deadlocks() - deadlocks) > 0:
            findings.append(Finding("locks taken in another order", "any", f"{more} deadlocks in Postgres"))
    except Exception as error:
        took = time.monotonic() - began
        return Result(
            name=scenario.name, command=command, took_s=took, error=f"{type(error).__name__}: {error}"
        )
    return Result(
        name=scenario.name,
        command=command,
        harm=outcome.harm,
        events=outcome.events + sum(len(sent.events) for sent in outcome.sent),
        findings=[*map(str, findings)],
        took_s=time.monotonic() - began,
        recovered_s=outcome.recovered_s,
        places=outcome.places,
    )


def _show(result: Result) -> None:
    line = f"{'passed' if result.passed else 'FAILED'}: {result.name}: {result.harm}, "
    line += f"{result.events:,} events, {result.took_s:.0f} s"
    if result.recovered_s is not None:
        line += f", recovered in {result.recovered_s:.1f} s"
    console.print(line, soft_wrap=True)
    for wrong in (result.error, *result.findings):
        if wrong:
            console.print(f"  {wrong}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    app(prog_name="python -m chaos")
