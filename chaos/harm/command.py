"""Command `chaos harm`: attacks beside an honest neighbour, and their effect on it.

Each run makes a new stack in .pulse-harm and removes it afterwards.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.harm import page as pages, people
from chaos.harm.attack import Attack, Target
from chaos.harm.attacks import ATTACKS
from chaos.harm.measure import Result, attacker, measure
from chaos.harm.neighbour import RATES, living
from chaos.stack import Kind, stack
from pulse_pipelines.domain.tenant import Tenant

app = typer.Typer(add_completion=False, help=__doc__)
console = Console(highlight=False)
HOME = Path(".pulse-harm").absolute()
PAGE = Path("docs/isolation.md")
WARM_UP_S = 90.0
"""Until the neighbour's first batches are settled and Dagster has loaded all assets."""
_Turn = tuple[Attack, tuple[Tenant, Target]]


@app.command("list")
def list_() -> None:
    """The attacks, and what key each takes."""
    for attack in ATTACKS:
        console.print(f"{attack.name} [dim](key: {attack.key})[/dim]", soft_wrap=True)


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    only: Annotated[list[str], typer.Option(help="Part of a name; may be given again.")] = [],  # noqa: B006
    seconds: Annotated[
        float, typer.Option(help="Of each attack, and of the quiet before it.", min=2.0)
    ] = 30.0,
    page: Annotated[
        bool, typer.Option("--page", help=f"Keep the results in {PAGE}, beside those of others.")
    ] = False,
) -> None:
    """Attack, and print what the neighbour noticed; exit code 1 when a bound is broken.

    Example: python -m chaos harm --only gzip --seconds 10
    """
    if context.invoked_subcommand:
        return
    chosen = [a for a in ATTACKS if not only or any(text.lower() in a.name.lower() for text in only)]
    if not chosen:
        raise typer.BadParameter("no attack has such a name; see `python -m chaos harm list`")
    with stack(HOME, Kind.DEFAULTS):
        results = _results(chosen, seconds)
    for result in results:
        _show(result)
    if page:
        pages.keep(PAGE, results, [attack.name for attack in ATTACKS])
    if any(result.findings() for result in results):
        raise typer.Exit(1)


def _results(chosen: Sequence[Attack], seconds: float) -> list[Result]:
    attackers = [people.make_attacker(room=True) for _ in chosen]
    for attack, (owner, _) in zip(chosen, attackers, strict=True):
        if attack.prepare:
            attack.prepare(owner)
    tenant, place = people.make_neighbour()
    results = []
    with living(place) as neighbour, attacker() as process, _progress() as bar:
        neighbour.window(WARM_UP_S)
        people.settled([text for text, _ in attackers])
        for attack, (owner, target) in bar(list(zip(chosen, attackers, strict=True))):
            results.append(measure(attack, target, neighbour, process, seconds, seconds))
            _measured(results[-1])
            people.settled([owner])  # the next attack starts on an idle stack
        records = neighbour.stop()
    people.settled([tenant])
    landing = people.not_once(tenant, records)
    usual = {kind: median(result.quiet.p99_ms[kind] for result in results) for kind in RATES}
    for result in results:
        result.landing, result.usual_ms = landing, usual
        for span in (result.quiet, result.beside):
            span.settled_s = people.waited_s(tenant, span.began, span.ended)
    return results


@contextmanager
def _progress() -> Iterator[Callable[[Sequence[_Turn]], Iterable[_Turn]]]:
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.completed}/{task.total}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield lambda turns: bar.track(turns, description="attacks")


def _measured(result: Result) -> None:
    figures = (
        f"{kind} {p99:.1f} → {result.beside.p99_ms[kind]:.1f} ms" for kind, p99 in result.quiet.p99_ms.items()
    )
    line = f"{result.name}: {pages.answers(result.answers)}; p99 {', '.join(figures)}"
    line += f"; api {result.peaks_mib['api']:,.0f} MiB"
    console.print(line, markup=False, soft_wrap=True)


def _show(result: Result) -> None:
    findings = result.findings()
    settled = f"settled {result.quiet.settled_s:.0f} → {result.beside.settled_s:.0f} s"
    line = f"{'FAILED' if findings else 'passed'}: {result.name}, {settled}"
    for text in (line, *(f"  {finding}" for finding in findings)):
        console.print(text, markup=False, soft_wrap=True)
