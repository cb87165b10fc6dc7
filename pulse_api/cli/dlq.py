"""`pulse dlq`: dead letters: list, inspect, replay once the cause is gone, discard."""

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from pulse_api.cli import complete, interrupted
from pulse_api.cli.arguments import TenantSlug, moment
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, readable, remark, say, show_fields, show_table
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import MAX_LETTERS, LetterState
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import UserError

MANY = 1_000
"""Number of letters from which a progress bar is shown."""

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: events that could not land. Inspect them, remove the cause, replay them.",
)

Dataset = Annotated[
    str | None,
    typer.Option(help="Only of this dataset, as the event named it.", autocompletion=complete.datasets),
]
Why = Annotated[
    Reason | None, typer.Option(metavar="REASON", help="Only with this reason; docs/reasons.md lists them.")
]
Since = Annotated[
    datetime | None,
    typer.Option(parser=moment, metavar="TIME", help="Only dead letters since this time, e.g. 2h."),
]
Until = Annotated[
    datetime | None, typer.Option(parser=moment, metavar="TIME", help="Only dead letters before this time.")
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids from `pulse dlq list`: 0-17")]
All = Annotated[
    bool, typer.Option("--all", help="Every open dead letter, or every one that the filters select.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")]


@app.command("list")
def list_letters(
    tenant: TenantSlug,
    dataset: Dataset = None,
    reason: Why = None,
    since: Since = None,
    until: Until = None,
    state: Annotated[LetterState, typer.Option(help="Only dead letters in this state.")] = LetterState.OPEN,
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_LETTERS, help="Maximum number of dead letters to show.")
    ] = 50,
    after: Annotated[
        str | None, typer.Option(help="Start after this cursor, which the previous page printed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's dead letters, the latest first, without their bytes.

    Example: pulse dlq list acme --reason schema_violation --since 2h
    """
    where = dead_letters.Filter(dataset, reason, since, until)
    page = dead_letters.list_dead_letters(
        registry.find_tenant(tenant), where, state=state, limit=limit, after=after
    )
    if as_json:
        emit({"dead_letters": [_document(letter) for letter in page.letters], "next_cursor": page.next})
        return
    rows = [
        (
            letter.letter_id,
            letter.settled_at,
            letter.reason,
            letter.dataset,
            letter.event_id,
            letter.pointer,
            _short(letter.detail),
            letter.resolution or "open",
        )
        for letter in page.letters
    ]
    columns = ("id", "set aside", "reason", "dataset", "event id", "pointer", "detail", "state")
    spare = ("state", "event id", "set aside", "pointer", "dataset")
    show_table(columns, rows, empty="No such dead letters", spare=spare)
    if page.next:
        remark(f"There are more: --after {page.next}")


@app.command("summary")
def summarize(
    tenant: TenantSlug,
    dataset: Dataset = None,
    since: Since = None,
    until: Until = None,
    state: Annotated[LetterState, typer.Option(help="Only dead letters in this state.")] = LetterState.OPEN,
    as_json: AsJson = False,
) -> None:
    """Count a tenant's dead letters by reason, the most frequent first.

    Example: pulse dlq summary acme --since 1d
    """
    where = dead_letters.Filter(dataset, None, since, until)
    counts = dead_letters.summary(registry.find_tenant(tenant), where, state=state)
    if as_json:
        emit([asdict(entry) for entry in counts])
        return
    rows = (
        (entry.reason, entry.count, entry.oldest, entry.newest, Reason(entry.reason).advice)
        for entry in counts
    )
    names = ("reason", "dead letters", "first", "last", "what to do")
    show_table(names, rows, empty="No such dead letters", spare=("first", "last"))


@app.command("show")
def show_letter(
    tenant: TenantSlug,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Id from `pulse dlq list`.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the event's original bytes, nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter: why it could not land, and the event as it was received.

    Example: pulse dlq show acme 0-17 --raw > event.json
    """
    letter, payload = dead_letters.find_dead_letter(registry.find_tenant(tenant), letter_id)
    if raw:
        sys.stdout.buffer.write(payload)
        return
    if as_json:
        emit(_document(letter) | {"payload_base64": base64.b64encode(payload).decode()} | _text(payload))
        return
    fields = _document(letter) | {"what to do": Reason(letter.reason).advice}
    show_fields((name.replace("_", " "), value) for name, value in fields.items())
    say(readable(payload))


@app.command("replay")
def replay_letters(
    tenant: TenantSlug,
    ids: Ids = None,
    dataset: Dataset = None,
    reason: Why = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    schema_version: Annotated[
        int | None, typer.Option(min=1, help="Version of the dataset's schema to validate the events by.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters that can land now. None lands twice.

    Select them by ids, by filters or with --all. Those that still cannot land stay open, and
    the exit code is then 1.

    Example: pulse dlq replay acme --reason unknown_dataset --dry-run
    """
    chosen = _chosen(ids, dead_letters.Filter(dataset, reason, since, until), everything)
    owner = registry.find_tenant(tenant)
    with interrupted.leaves(interrupted.LETTERS), _progress(owner, chosen, "replaying") as progress:
        result = dead_letters.replay(
            owner, chosen, schema_version=schema_version, dry_run=dry_run, progress=progress
        )
    _show(result, as_json)


@app.command("discard")
def discard_letters(
    tenant: TenantSlug,
    ids: Ids = None,
    dataset: Dataset = None,
    reason: Why = None,
    since: Since = None,
    until: Until = None,
    everything: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Close dead letters without replaying them. Their bytes are kept for inspection.

    Select them by ids, by filters or with --all; without ids the command asks for confirmation.

    Example: pulse dlq discard acme --reason undecodable --until 30d --yes
    """
    chosen = _chosen(ids, dead_letters.Filter(dataset, reason, since, until), everything)
    owner = registry.find_tenant(tenant)
    if isinstance(chosen, dead_letters.Filter) and not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UserError(
                "discarding by filter needs a confirmation", fix="Check with --dry-run, then add --yes"
            )
        typer.confirm(f"Discard {_count(owner, chosen):,} dead letters of {tenant}?", abort=True, err=True)
    with interrupted.leaves(interrupted.LETTERS), _progress(owner, chosen, "discarding") as progress:
        result = dead_letters.discard(owner, chosen, dry_run=dry_run, progress=progress)
    _show(result, as_json)


def _chosen(
    ids: list[str] | None, where: "dead_letters.Filter", everything: bool
) -> "dead_letters.Filter | list[str]":
    if ids and (everything or where != dead_letters.Filter()):
        raise UserError("ids and filters cannot be combined", fix="Use one or the other")
    if ids:
        return ids
    if where == dead_letters.Filter() and not everything:
        raise UserError("no dead letters are selected", fix="Name ids, or filters, or --all")
    return where


def _count(tenant: Tenant, where: "dead_letters.Filter") -> int:
    return sum(entry.count for entry in dead_letters.summary(tenant, where))


@contextmanager
def _progress(
    tenant: Tenant, chosen: "dead_letters.Filter | list[str]", title: str
) -> Iterator[Callable[[int], None] | None]:
    console = Console(stderr=True)
    total = _count(tenant, chosen) if isinstance(chosen, dead_letters.Filter) else len(chosen)
    if total < MANY or not console.is_terminal:
        yield None
        return
    with Progress(console=console) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


def _document(letter: "dead_letters.DeadLetter") -> dict[str, Any]:
    return {"id": letter.letter_id} | asdict(letter)


def _text(payload: bytes) -> dict[str, str | None]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload": None}


def _short(detail: str) -> str:
    return detail if len(detail) <= 80 else f"{detail[:79]}…"


def _sentences() -> "dict[dead_letters.DeadLetterOutcome, str]":
    """Sentences that describe each outcome, for a number of letters."""
    outcomes = dead_letters.DeadLetterOutcome
    return {
        outcomes.WOULD_LAND: "would land",
        outcomes.PUBLISHED: "published again: they land with the next batch",
        outcomes.DUPLICATE: "do not need to land: another event has the same id",
        outcomes.REJECTED: "still cannot land",
        outcomes.DISCARDED: "discarded",
        outcomes.ALREADY_REPLAYED: "were replayed before",
        outcomes.ALREADY_DISCARDED: "were discarded before",
        outcomes.ALREADY_LANDED: "were landed by a backfill",
        outcomes.ALREADY_ERASED: "were erased",
        outcomes.NOT_FOUND: "do not exist",
    }


def _show(result: "dead_letters.Result", as_json: bool) -> None:
    if as_json:
        emit(
            {
                "dry_run": result.dry_run,
                "counts": {outcome.value: count for outcome, count in result.counts.items()},
                "verdicts": [asdict(verdict) for verdict in result.verdicts],
            }
        )
    else:
        odd = [verdict for verdict in result.verdicts if verdict.outcome in dead_letters.UNRESOLVED]
        if odd:
            rows = ((v.letter_id, v.outcome, v.reason, v.pointer, _short(v.detail or "")) for v in odd)
            show_table(("id", "outcome", "reason", "pointer", "detail"), rows, empty="")
            if more := result.unresolved - len(odd):
                remark(f"… and {more:,} more, beyond the first {dead_letters.SHOWN:,} letters")
        for outcome, meaning in _sentences().items():
            if count := result.counts.get(outcome):
                say(f"{count:,} {meaning}")
        if not result.total:
            remark("No such open dead letters")
    if not result.complete:
        raise typer.Exit(FAILED)
