"""`pulse collect`: events of a file through the HTTP API, the same door as everybody's."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.output import AsJson, emit, remark, say, show_table
from pulse_api.client import Client, requests
from pulse_pipelines import registry
from pulse_pipelines.domain.key import Presented
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import PulseError, UserError
from pulse_resources.local import api
from pulse_resources.settings import load_settings

app = typer.Typer()
MAX_VERDICTS = 1_000
"""Kept and printed; beyond, they are only counted."""
MAX_SHOWN = 20


@app.command()
def collect(
    tenant: TenantSlug,
    file: Annotated[
        Path, typer.Argument(help="Events; - reads standard input.", allow_dash=True, show_default=True)
    ] = Path("-"),
    key: Annotated[
        str | None, typer.Option(envvar="PULSE_KEY", help="The tenant's key with the scope collect.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send events through the HTTP API: one JSON object a line, or one JSON array.

    Waits and tries again while the API is busy or the tenant is over its rate; sending the same again is
    safe, since an event id lands once. Exit code 1, and why, if events were refused.

    Example: PULSE_KEY=$(pulse key create acme) pulse collect acme events.ndjson
    """
    presented = _checked(registry.find_tenant(tenant), key)
    total = {"sent": 0, "accepted": 0, "dead_lettered": 0, "refused": 0}
    verdicts: list[dict[str, Any]] = []
    with ExitStack() as stack:
        source = _open(file, stack)
        client = stack.enter_context(Client(api.url(load_settings()), presented))
        advance = _progress(source, stack)
        try:
            for group in requests(_payloads(source)):
                answer = client.collect(group)
                for verdict in answer.verdicts[: MAX_VERDICTS - len(verdicts)]:
                    verdicts.append(verdict | {"index": total["sent"] + verdict["index"]})
                total["sent"] += len(group)
                for name in ("accepted", "dead_lettered", "refused"):
                    total[name] += getattr(answer, name)
                advance(total["sent"])
        except PulseError:
            taken = total["accepted"] + total["dead_lettered"]
            remark(f"{taken:,} events were taken before; it is safe to send all of them again.")
            raise
    if as_json:
        emit(total | {"verdicts": verdicts})
    else:
        _show(total, verdicts)
    raise typer.Exit(1 if total["refused"] else 0)


def _checked(tenant: Tenant, key: str | None) -> str:
    issue = f"Issue one with: pulse key create {tenant.slug} --scope collect"
    if not key:
        raise UserError("no key: give it with --key or in PULSE_KEY", fix=issue)
    presented = Presented.parse(key)
    if presented is None or presented.tenant_id != tenant.tenant_id:
        raise UserError("this is no key of the tenant", fix=issue, tenant=tenant.slug)
    return key


def _open(file: Path, stack: ExitStack) -> BinaryIO:
    if str(file) == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(file.open("rb"))
    except OSError as error:
        raise UserError(f"cannot read the events: {error}") from error


def _payloads(source: Iterable[bytes]) -> Iterator[bytes]:
    """Lines as they are; the elements of an array, each as a line of its own."""
    lines = (line.strip() for line in source)
    first = next((line for line in lines if line), b"")
    if first.startswith(b"["):
        yield from _elements(b"\n".join([first, *lines]))
        return
    if first:
        yield first
    yield from (line for line in lines if line)


def _elements(text: bytes) -> Iterator[bytes]:
    try:
        array = json.loads(text)  # unlike faster ones it keeps all digits of an integer
    except (ValueError, RecursionError) as error:
        raise UserError(f"the events are no JSON array: {error}") from error
    for element in array:
        yield json.dumps(element).encode()


def _progress(source: BinaryIO, stack: ExitStack) -> "Any":
    """Shows how much of the file is sent, on a terminal; returns what to call with the count."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = stack.enter_context(Progress(*columns, console=console, disable=not console.is_terminal))
    try:
        size: int | None = os.fstat(source.fileno()).st_size or None
    except OSError:
        size = None
    task = bar.add_task("sending", total=size)

    def advance(sent: int) -> None:
        position = source.tell() if size else None
        bar.update(task, completed=position, description=f"{sent:,} events")

    return advance


def _show(total: dict[str, int], verdicts: list[dict[str, Any]]) -> None:
    say(
        f"{total['sent']:,} events: {total['accepted']:,} accepted, "
        f"{total['dead_lettered']:,} dead-lettered, {total['refused']:,} refused"
    )
    if not verdicts:
        return
    names = ("index", "event_id", "status", "reason", "pointer", "detail")
    shown = [[verdict[name] for name in names] for verdict in verdicts[:MAX_SHOWN]]
    show_table(names, shown, empty="")
    if (more := total["dead_lettered"] + total["refused"] - len(shown)) > 0:
        remark(f"{more:,} more; --json prints up to {MAX_VERDICTS:,}")
