"""`pulse erase`: remove a person's events from every store, and verify that they are gone."""

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from pulse_api.cli import complete, interrupted
from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, say, show_fields, show_table, working
from pulse_pipelines import erasure, registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import UserError

app = typer.Typer()


@app.command("erase")
def erase(
    tenant: TenantSlug,
    where: Annotated[
        str,
        typer.Option(
            metavar="FIELD=VALUE",
            help="A property, or a path to what is within it (customer.email); event_id, trace_id, "
            "context.<path>; data.<path> for a property that no schema declares.",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Of this dataset only; else of all datasets of the tenant.", autocompletion=complete.datasets
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; change nothing.")
    ] = False,
    verify: Annotated[
        str | None, typer.Option(metavar="ID", help="Look everywhere for what this erasure removed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a person's events from tables, their history, the raw zone, dead letters and summaries.

    Without --dataset also from the tenant's own tables that ask for it (the property pulse.erasure).

    It covers events that have settled, and ends by searching every store again. There is a receipt for
    each dataset in which nothing is left; it says what Kafka still holds, and until when. If it was
    interrupted, the same command resumes it. It cannot be undone.

    Example: pulse erase acme --where customer.email=ada@example.org --dry-run
    """
    owner = registry.find_tenant(tenant)
    if verify is not None:
        _verify(owner, verify, where, as_json)
        return
    if dataset is None:
        _everywhere(owner, where, yes, dry_run, as_json)
        return
    if dry_run or not yes:
        found = erasure.preview(owner, dataset, where)
        if dry_run:
            _show_preview(found, as_json)
            return
        _confirm(owner, [found])
    with interrupted.leaves(interrupted.ERASURE), working("erasing") as begins:
        receipt = erasure.erase(owner, dataset, where, lambda step: begins(f"erasing: {step}"))
    if as_json:
        emit(receipt)
    else:
        _show_receipt(receipt, where)


def _everywhere(owner: Tenant, where: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Erase in all datasets; exit code 1 if data that mention the value were left out."""
    found = erasure.everywhere.find(owner, where)
    if dry_run or not yes:
        previews = erasure.everywhere.preview(owner, found)
        own = erasure.everywhere.count_own(owner, found)
        if dry_run:
            left = list(erasure.everywhere.left_out(owner, found, own))
            counted = {each.table: each.rows for each in own if each.has_column and not each.reason}
            if as_json:
                emit({"datasets": previews, "own_tables": counted, "left_out": left})
                return
            rows = ((slug, s.rows, s.raw_events, s.dead_letters) for slug, s in previews.items())
            show_table(("dataset", "rows", "raw events", "dead letters"), rows, empty="")
            if counted:
                show_table(("own table", "rows"), counted.items(), empty="")
            _show_left_out(left)
            return
        _confirm(owner, previews.values(), sum(each.rows for each in own))
    with interrupted.leaves(interrupted.ERASURE), working("erasing") as begins:
        receipts = erasure.everywhere.erase(owner, found, lambda step: begins(f"erasing from {step}"))
        begins("looking for what is left out")
        became = erasure.everywhere.own_of(owner, receipts)
        left = list(erasure.everywhere.left_out(owner, found, became))
    if as_json:
        emit({"datasets": receipts, "left_out": left})
    else:
        for receipt in receipts:
            _show_receipt(receipt, found.where)
            say("")
        _show_left_out(left)
    if left:
        raise typer.Exit(FAILED)


def _show_left_out(left: "Iterable[erasure.everywhere.LeftOut]") -> None:
    for each in left:
        remark(f"not covered: {each.what}. {each.fix}")


def _confirm(owner: Tenant, previews: Iterable["erasure.ErasurePreview"], own: int = 0) -> None:
    if not sys.stdin.isatty():
        raise UserError("erasing needs a confirmation", fix="Look with --dry-run, then add --yes")
    found = list(previews)
    rows, raw = own + sum(each.rows for each in found), sum(each.raw_events for each in found)
    letters = sum(each.dead_letters for each in found)
    question = (
        f"Erase {rows:,} rows, {raw:,} raw events and {letters:,} dead letters of {owner.slug}, for good?"
    )
    typer.confirm(question, abort=True, err=True)


def _verify(owner: Tenant, erasure_id: str, where: str, as_json: bool) -> None:
    with working("looking everywhere"):
        found = erasure.verified(owner, erasure_id, where)
    if as_json:
        emit({"clean": found.clean, "looked_at": found.looked_at, "leftovers": found.leftovers})
    else:
        say(f"{'clean' if found.clean else 'NOT CLEAN'}: looked at {_counts(found.looked_at)}")
        for leftover in found.leftovers:
            say(f"left: {leftover}")
    if not found.clean:
        remark("Erase again: what is left is removed by another erasure.")
        raise typer.Exit(FAILED)


def _counts(looked_at: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in looked_at.items())


def _show_preview(found: "erasure.ErasurePreview", as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    say(
        f"would remove {found.rows:,} rows from {found.files:,} data files and {found.raw_events:,} events "
        f"from {found.raw_objects:,} raw objects, and empty {found.dead_letters:,} dead letters"
    )


def _show_receipt(receipt: dict[str, Any], where: str) -> None:
    removed, raw_zone, letters = receipt["removed"], receipt["raw_zone"], receipt["dead_letters"]
    show_fields(
        (
            ("erasure", receipt["erasure_id"]),
            ("of", f"{receipt['tenant']}, dataset {receipt['dataset']}, by {receipt['field']}"),
            ("covers", ", ".join(f"{part}: {below}" for part, below in receipt["covers"].items())),
            ("rows", removed["rows"]),
            ("snapshots", removed["snapshots"]),
            ("files deleted", receipt["table"]["objects_deleted"]),
            ("raw events", f"{removed['raw_events']:,} in {len(raw_zone['objects']):,} objects"),
            ("dead letters", removed["dead_letters"]),
            ("summaries", removed["summaries"]),
            ("events of the state", removed["states"]),
            *((f"rows of {each['table']}", each["rows"]) for each in receipt["own_tables"]),
            ("verified", f"nothing is left in {_counts(receipt['verified']['looked_at'])}"),
        )
    )
    if letters["replayed"]:
        remark(
            f"{letters['replayed']:,} of the dead letters had been replayed: what was published of them "
            "then is covered only if its offset is. Erase again once everything is settled"
        )
    if letters["unreadable"]:
        remark(
            f"{letters['unreadable']:,} dead letters are not JSON and have the value somewhere in their "
            f"bytes: look at them with pulse dlq show: {', '.join(letters['unreadable_ids'])}"
        )
    rows = ((place["where"], place["until"] or "for ever", place["why"]) for place in receipt["remains"])
    show_table(("remains", "until", "why"), rows, empty="Nothing remains")
    field = where.partition("=")[0]
    say(f"check it: pulse erase {receipt['tenant']} --where {field}=... --verify {receipt['erasure_id']}")
