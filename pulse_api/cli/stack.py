"""`pulse up`, `pulse down`, `pulse status`: the services of one machine."""

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.status import Status as Spinner
from rich.table import Table

from pulse_api.cli import guard, interrupted, stack_check
from pulse_api.cli.ingestion import ingestion
from pulse_api.cli.output import AsJson, emit, harmless, remark, shown
from pulse_resources.errors import PulseError, Transient
from pulse_resources.home import no_installation, pulse_home
from pulse_resources.local import dagster, stack
from pulse_resources.local.layout import Layout
from pulse_resources.local.services import EVERYTHING, INFRASTRUCTURE
from pulse_resources.local.status import Row, status
from pulse_resources.settings import load_settings

app = typer.Typer()
_console = Console()
_errors = Console(stderr=True)
PORT_TRIES = 3
"""Attempts to start a stack when other programs take its ports between their choice and the start."""
_ADDRESSES_FIRST = {"api": "HTTP API", "lake": "REST catalog", "dagster-webserver": "Dagster UI"}


class _Progress:
    """A spinner on a terminal, plain lines elsewhere."""

    def __init__(self, spinner: Spinner, console: Console) -> None:
        self._spinner, self._console = spinner, console

    def step(self, title: str, detail: str = "") -> None:
        self._spinner.update(f"{title} [dim]{detail}[/dim]" if detail else title)

    def done(self, line: str) -> None:
        self._console.print(f"[green]✓[/green] {line}")


@app.command()
def up(
    without_dagster: Annotated[
        bool, typer.Option("--without-dagster", help="Start Postgres, Kafka, MinIO and Spark only.")
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="In a new folder: use TLS for Postgres, Kafka and MinIO.")
    ] = False,
    as_json: AsJson = False,
    only: Annotated[str, typer.Option(metavar="NAMES", help="Services to start: postgres,kafka,minio.")] = "",
    definitions: Annotated[
        str, typer.Option(help="Module that the Dagster code server loads.", hidden=True)
    ] = dagster.MODULE,
) -> None:
    """Start every service of Pulse on this machine; wait until all are ready.

    Postgres, Kafka, MinIO, a Spark Connect server, the HTTP API, the REST catalog and Dagster run in the
    background until `pulse down`; one that dies is restarted. Safe to run again. The first start downloads
    what is missing (some minutes), and prints an operator key for the HTTP API, once. The Dagster UI
    requires a sign-in; the printed address signs a browser in.

    All state is kept in one folder: $PULSE_HOME, by default ./.pulse. Logs are in its subfolder `logs`.

    To use a service of your own, export its address for every command: PULSE_POSTGRES__HOST,
    PULSE_KAFKA__BOOTSTRAP_SERVERS, PULSE_OBJECT_STORE__ENDPOINT, PULSE_SPARK__REMOTE. `pulse up` then
    does not start that service.

    Example: PULSE_API__PORT=8080 pulse up
    """
    console = _errors if as_json else _console
    started = bring_up(console, _chosen(without_dagster, only), definitions, with_tls=tls)
    if not started:
        console.print("Pulse is up already.")
    if not as_json:
        announce(console)
        return
    layout = Layout(pulse_home())
    rows = _addressed(layout)
    emit(
        {
            "home": str(layout.home),
            "started": started,
            "addresses": {row.service: row.address for row in rows},
            "operator_key": _first_key(rows),
            "sign_in": _sign_in(rows),
        }
    )


def bring_up(
    console: Console,
    services: tuple[str, ...] = EVERYTHING,
    definitions: str = dagster.MODULE,
    *,
    with_tls: bool = False,
) -> bool:
    """Start the `services` services, showing progress on `console`; False if they were up already.

    Raises:
        typer.Exit: they did not come up; the reason has been printed.
        KeyboardInterrupt: of Ctrl-C, with what became of them.
    """
    layout, started = Layout(pulse_home()), False
    try:
        with console.status("Checking the services") as spinner:
            progress = _Progress(spinner, console)
            for retries in reversed(range(PORT_TRIES)):
                try:
                    started = stack.start(layout, services, progress, definitions, with_tls=with_tls)
                    _follow(layout, services, progress, quiet=not started)
                    break
                except Transient as error:
                    lost = error.where.get("port")
                    if not lost or not retries:
                        raise
                    # The failed service has stopped all of them.
                    services = stack.with_recorded(layout, services)
                    progress.done(f"Another program has taken port {lost}: starting again")
    except KeyboardInterrupt:
        raise _interrupted(layout, started) from None
    except PulseError as error:
        _complain(layout, error)
        raise typer.Exit(guard.code_of(error)) from None
    return started


def announce(console: Console) -> None:
    """Print every address and, on a new installation, the first operator's key: the only time it is shown."""
    layout = Layout(pulse_home())
    rows = _addressed(layout)
    table = _plain_table("service", "address", "")
    for row in sorted(rows, key=lambda row: row.service not in _ADDRESSES_FIRST):
        name = _ADDRESSES_FIRST.get(row.service, row.service)
        table.add_row(name, row.address, "external" if row.external else row.note)
    console.print("[bold]Pulse is up[/bold]")
    _print_whole(table, console)
    console.print(f"State and logs: {layout.home}", soft_wrap=True)
    if address := _sign_in(rows):
        console.print(f"Sign in to the Dagster UI: {address}", soft_wrap=True, highlight=False)
    if key := _first_key(rows):
        console.print(f"Operator key, shown once: {key}", soft_wrap=True, highlight=False)
        console.print("Another one: pulse key operator create")


@app.command()
def down(as_json: AsJson = False) -> None:
    """Stop every service that `pulse up` started; wait until all have ended.

    Data stays in $PULSE_HOME; the next `pulse up` continues with it.

    Example: pulse down
    """
    layout = Layout(pulse_home())
    console = _errors if as_json else _console
    try:
        with interrupted.leaves(interrupted.STOPPING), console.status("Stopping") as spinner:
            stopped = stack.stop(layout, _Progress(spinner, console))
    except PulseError as error:
        _complain(layout, error)
        raise typer.Exit(guard.code_of(error)) from None
    if as_json:
        emit({"stopped": stopped})
        return
    if not stopped:
        remark(
            f"Nothing to stop: Pulse is not running in {layout.home}. Name another folder: "
            f"{stack_check.elsewhere()}"
        )
        return
    _console.print("Pulse is stopped.")


@app.command(name="status")
def show_status(as_json: AsJson = False) -> None:
    """Show every service, the events that wait to be ingested, and problems that need a person.

    Memory shared by processes is counted once. Exit code 1 if a service is not up, a batch is stuck, or a
    topic cannot be ingested.

    Example: pulse status --json
    """
    layout = Layout(pulse_home())
    current = status(layout)
    reachable = {row.service for row in current.rows if row.up} >= {"postgres", "kafka"}
    ingesting = ingestion() if reachable else None
    if as_json:
        document = {"home": str(layout.home)} | current.as_json()
        emit(document | {"ingestion": ingesting and ingesting.as_json()})
    elif not current.rows:
        remark(str(no_installation(stack_check.elsewhere())))
    else:
        _print_whole(_table(current.rows))
        _console.print(f"{current.memory_bytes / 2**30:.2f} GiB in all")
        if address := _sign_in(current.rows):
            _console.print(f"Sign in to the Dagster UI: {address}", soft_wrap=True, highlight=False)
        for line in ingesting.lines() if ingesting else ():
            _console.print(line, soft_wrap=True, highlight=False)
        if not any(row.up for row in current.rows):
            remark("Pulse is stopped. Start it with `pulse up`")
    if not current.up or (ingesting and ingesting.problems):
        raise typer.Exit(guard.FAILED)


def _chosen(without_dagster: bool, only: str) -> tuple[str, ...]:
    if not only:
        return INFRASTRUCTURE if without_dagster else EVERYTHING
    names = tuple(only.split(","))
    if unknown := set(names) - set(EVERYTHING):
        raise typer.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(EVERYTHING)}")
    return names


def _follow(layout: Layout, names: tuple[str, ...], progress: _Progress, *, quiet: bool) -> None:
    started: set[str] = set()
    for current in stack.watch(layout, names):
        services = current.services.values()
        for service in services:
            if service.phase == "up" and service.name not in started and not quiet:
                progress.done(f"{service.name} (external)" if service.external else service.name)
            if service.phase == "up":
                started.add(service.name)
        busy = [f"{s.name} ({s.phase})" for s in services if s.phase not in ("up", "waiting")]
        progress.step("Giving up" if current.error else "Starting", ", ".join(busy))


def _addressed(layout: Layout) -> list[Row]:
    return [row for row in status(layout).rows if row.address]


def _first_key(rows: list[Row]) -> str | None:
    from pulse_api.cli.key import first_operator_key  # slow to import: the registry, for `up` only

    return first_operator_key() if any(row.service == "api" for row in rows) else None


def _sign_in(rows: Iterable[Row]) -> str | None:
    """Address that signs a browser in to the UI, if the UI runs."""
    shown = any(row.service == "dagster-webserver" and row.up for row in rows)
    return dagster.login_url(load_settings()) if shown else None


def _print_whole(table: Table, console: Console = _console) -> None:
    """Print a table at its full width: a terminal wraps it, while cut text could not be read or copied."""
    wide = Measurement.get(console, console.options.update(max_width=1_000), table).maximum
    before, console.width = console.width, max(console.width, wide)
    console.print(table, crop=False)
    console.width = before


def _plain_table(*columns: str) -> Table:
    """A table without frames and truncation: addresses must stay whole, to be copied."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != "note")
    return table


def _table(rows: tuple[Row, ...]) -> Table:
    notes = ("note",) if any(row.note for row in rows) else ()
    table = _plain_table("service", "state", "address", "pid", "uptime", "restarts", "memory", *notes)
    for row in rows:
        memory = f"{row.memory_bytes / 2**20:.0f} MiB" if row.memory_bytes else ""
        uptime = _duration(row.uptime_seconds) if row.uptime_seconds is not None else ""
        colour = "green" if row.up else "red"
        shown = "external" if row.external and row.up else row.state
        state, pid = f"[{colour}]{shown}[/{colour}]", str(row.pid or "")
        note = [row.note] if notes else []
        table.add_row(row.service, state, row.address, pid, uptime, str(row.restarts), memory, *note)
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _interrupted(layout: Layout, started: bool) -> KeyboardInterrupt:
    """Stop the services that were started; returns the interrupt that reports it."""
    if not started:
        return interrupted.of(interrupted.NOT_STARTED)
    with _errors.status("Interrupted: stopping what was started") as spinner:
        stack.stop(layout, _Progress(spinner, _errors))
    return interrupted.of(interrupted.STARTED)


def _complain(layout: Layout, error: PulseError) -> None:
    _errors.print(f"[red]Error:[/red] {shown(error.message)}", highlight=False)
    if error.fix:
        _errors.print(shown(error.fix), highlight=False)
    service = error.where.get("service")
    log = layout.log(service) if service else None
    if log and log.exists():
        _errors.print(f"The end of {log}:", soft_wrap=True)
        for line in log.read_text(errors="replace").splitlines()[-15:]:
            _errors.print(f"  {harmless(line)}", highlight=False, markup=False, soft_wrap=True)
