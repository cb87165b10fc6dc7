"""`pulse collect`: send a file's events through the HTTP API, as every client does."""

import json
import os
import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pulse_api import sending
from pulse_api.cli import interrupted
from pulse_api.cli.arguments import TenantSlug, duration, without_mark
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, counted, emit, remark, say, show_table
from pulse_pipelines import registry
from pulse_pipelines.domain.key import Presented
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import settings
from pulse_resources.errors import PulseError, UserError
from pulse_resources.local import front_ends

app = typer.Typer()
MAX_VERDICTS = 1_000
"""Maximum verdicts kept and printed; further ones are only counted."""
MAX_SHOWN = 20
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_BETWEEN = " \t\n\r,"
_DECODER = json.JSONDecoder()
MAX_EVENT_BYTES = 1 << 20
"""Text that is looked at for the end of an event: more than the API accepts of one."""


@app.command()
def collect(
    tenant: TenantSlug,
    file: Annotated[
        Path, typer.Argument(help="File of events; - for standard input.", allow_dash=True, show_default=True)
    ] = Path("-"),
    key: Annotated[
        str | None, typer.Option(envvar="PULSE_KEY", help="The tenant's key with the scope collect.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until every event is settled; exit code 1 if one did not land."),
    ] = False,
    at_most: Annotated[
        timedelta,
        typer.Option("--timeout", parser=duration, metavar="TIME", help="How long to wait."),
    ] = "10m",  # type: ignore[assignment]  # typer parses it
    as_json: AsJson = False,
) -> None:
    """Send events through the HTTP API: JSON objects, on one line each or on several, or one array.

    Retries while the API is busy or the tenant is over its rate. Sending the same events again is safe:
    an event id lands once. Exit code 1, with the reasons, if events were refused or, with --wait, if
    one did not land.

    Example: PULSE_KEY=$(pulse key create acme) pulse collect acme events.ndjson --wait
    """
    owner = registry.find_tenant(tenant)
    presented = _checked(owner, key)
    if wait:  # the imports take a second
        from pulse_api.cli import waiting

        sent = waiting.Sent()
    tally = _Tally()
    with ExitStack() as stack:
        source = _open(file, stack)
        client = stack.enter_context(
            sending.open_client(front_ends.api_url(settings.load_settings()), presented)
        )
        advance = _progress(source, stack)
        try:
            for batch in sending.batches(_payloads(source, tally.lines)):
                answer = sending.send_batch(client, batch)
                tally.add(answer)
                if wait:
                    refused = {verdict.index for verdict in answer.verdicts if verdict.status == "refused"}
                    for event in batch.events:
                        if event.index not in refused:
                            sent.add(event.payload)
                advance(tally.sent)
        except KeyboardInterrupt:
            raise interrupted.of(interrupted.SENDING, taken=f"{tally.settling:,}") from None
        except PulseError as error:
            if error.where.get("status") in ("401", "403"):
                error.fix = _issue(owner)  # instead of the API's fix, which mentions headers
            remark(
                f"{tally.settling:,} events were accepted before the error. Send all again: none lands twice."
            )
            raise
    became: dict[str, Any] = {}
    with interrupted.leaves(interrupted.SETTLING, tenant=owner.slug):
        if not as_json:
            tally.show()
        if wait:
            waiting.until_settled(owner, at_most, tally.settling)
            became = sent.fates(owner)
    if as_json:
        emit(tally.document() | became)
    elif wait:
        _show_fates(became)
    if tally.refused or became.get("not_landed"):
        raise typer.Exit(FAILED)


@dataclass
class _Tally:
    """What the API answered to the events that were sent."""

    sent: int = 0
    accepted: int = 0
    dead_lettered: int = 0
    refused: int = 0
    lines: "array[int]" = field(default_factory=lambda: array("Q"))
    """The line of each event in the file, from 1; 0 for an element of an array."""
    _verdicts: list[dict[str, Any]] = field(default_factory=list)
    _ignored: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By member of events: how many have it, and what to do."""

    @property
    def settling(self) -> int:
        """Events that land, or become dead letters."""
        return self.accepted + self.dead_lettered

    def add(self, answer: "sending.SendResult") -> None:
        self.sent += answer.events
        self.accepted += answer.accepted
        self.dead_lettered += answer.dead_lettered
        self.refused += answer.refused
        for verdict in answer.verdicts[: MAX_VERDICTS - len(self._verdicts)]:
            self._verdicts.append(asdict(verdict) | {"line": self.lines[verdict.index] or None})
        for member in answer.ignored:
            before = self._ignored.get(member.member, {"events": 0})["events"]
            self._ignored[member.member] = asdict(member) | {"events": before + member.events}

    def document(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("sent", "accepted", "dead_lettered", "refused")}
        return counts | {"verdicts": self._verdicts, "ignored": [*self._ignored.values()]}

    def show(self) -> None:
        say(
            f"{counted(self.sent, 'event')}: {self.accepted:,} accepted, "
            f"{self.dead_lettered:,} dead-lettered, {self.refused:,} refused"
        )
        if self._verdicts:
            place = "line" if self._verdicts[0]["line"] else "index"
            names = (place, "event_id", "status", "reason", "pointer", "detail")
            shown = [[verdict[name] for name in names] for verdict in self._verdicts[:MAX_SHOWN]]
            show_table(names, shown, empty="", spare=("status", "event_id"))
            if (more := self.dead_lettered + self.refused - len(shown)) > 0:
                remark(f"{more:,} more; --json prints up to {MAX_VERDICTS:,}")
        for entry in self._ignored.values():
            remark(f"{entry['detail']} ({counted(entry['events'], 'event')}). {entry['fix']}")


def _checked(tenant: Tenant, key: str | None) -> str:
    if not key:
        raise UserError("the key is missing: use --key or PULSE_KEY", fix=_issue(tenant))
    presented = Presented.parse(key)
    if presented is None or presented.tenant_id != tenant.tenant_id:
        raise UserError("this is not a key of the tenant", fix=_issue(tenant), tenant=tenant.slug)
    return key


def _issue(tenant: Tenant) -> str:
    return f"Issue one with: pulse key create {tenant.slug} --scope collect"


def _open(file: Path, stack: ExitStack) -> BinaryIO:
    if str(file) == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(file.open("rb"))
    except OSError as error:
        raise UserError(
            f"cannot read the events: {file}: {error.strerror}", fix="Name a file that this account may read"
        ) from error


def _payloads(source: Iterable[bytes], lines: "array[int]") -> Iterator[bytes]:
    """Lines as they are; elements of an array, each as it is written; objects of several lines joined.

    Args:
        lines: receives each event's line number, from 1; 0 for an element of an array.
    """
    marked = (line if number > 1 else without_mark(line, "file") for number, line in enumerate(source, 1))
    numbered = ((number, text) for number, line in enumerate(marked, 1) if (text := line.strip()))
    for number, text in numbered:
        if not lines and text.startswith(b"["):
            for element in _elements(b"\n".join([text, *(line for _, line in numbered)])):
                lines.append(0)
                yield element
            return
        if not lines and text.startswith(b"{") and not _is_json(text):
            for first, event in _joined(chain([(number, text)], numbered)):
                lines.append(first)
                yield event
            return
        lines.append(number)
        yield text


def _joined(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Events that are written over several lines, each with the number of its first line.

    An event that is no JSON ends where its brackets do: it is refused as one, for what is wrong with it.
    Lines whose brackets do not match remain as they are: each is refused, or accepted, by itself.
    """
    pending: list[tuple[int, bytes]] = []
    for line in lines:
        pending.append(line)
        whole = b"\n".join(text for _, text in pending)
        if line[1].endswith(b"}") and (_is_json(whole) or _is_closed(whole)):
            yield pending[0][0], whole
            pending = []
        elif len(whole) > MAX_EVENT_BYTES:
            yield from pending
            pending = []
    yield from pending


def _is_closed(text: bytes) -> bool:
    """Whether as many brackets are closed as are opened, outside strings."""
    outside = _STRING.sub(b"", text)
    opened, closed = (sum(map(outside.count, brackets)) for brackets in ((b"{", b"["), (b"}", b"]")))
    return opened == closed


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _elements(text: bytes) -> Iterator[bytes]:
    try:
        whole = text.decode()  # by json.loads it would be UTF-16, too, if it looks like that
        array = json.loads(whole)
    except (ValueError, RecursionError) as error:
        why = clearer(text, error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise UserError(f"the events are not a JSON array: {why}") from error
    end = 1
    for _ in array:  # written again, numbers would lose digits
        while whole[end] in _BETWEEN:
            end += 1
        start = end
        _, end = _DECODER.raw_decode(whole, start)
        yield whole[start:end].encode()


def _progress(source: BinaryIO, stack: ExitStack) -> "Any":
    """Show a progress bar of the file's bytes on a terminal; returns a callback for the number sent."""
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


def _show_fates(became: dict[str, Any]) -> None:
    say(f"{became['landed']:,} landed, {became['not_landed']:,} did not")
    if became["not_landed"]:
        rows = [list(fate.values()) for fate in became["fates"]]
        show_table(("event id", "dataset", "state", "detail"), rows, empty="")
        if (more := became["not_landed"] - len(rows)) > 0:
            remark(f"{more:,} more")
