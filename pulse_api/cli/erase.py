"""`pulse erase`: remove a person's events from every store, and verify that they are gone."""

import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from pulse_api.cli import complete, interrupted
from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, say, show_fields, show_table, working
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import everywhere, run as erasure
from pulse_resources.errors import UserError

app = typer.Typer()


@app.command("erase")
def erase(
    tenant: TenantSlug,
    where: Annotated[
        str,
        typer.Option(
            metavar="FIELD=VALUE",
            help="A property, or a path to a nested one (customer.email); event_id, trace_id or "
            "context.<path>; data.<path> for a property that no schema declares.",
        ),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Only erase from this dataset; by default from all.", autocompletion=complete.datasets
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; change nothing.")
    ] = False,
    verify: Annotated[
        str | None, typer.Option(metavar="ID", help="Search every store for what this erasure removed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a person's events from tables, their history, the raw zone, dead letters and summaries.

    Without --dataset, it also erases from the tenant's own tables with the property pulse.erasure.

    It covers events that have settled, and ends by searching every store again. A dataset in which nothing
    is left gets a receipt, which states what Kafka still holds, and until when. If the command is
    interrupted, repeat it to resume. An erasure cannot be undone.

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
        preview = erasure.preview(owner, dataset, where)
        if dry_run:
            _show_preview(preview, as_json)
            return
        _confirm(owner, [preview])
    with interrupted.leaves(interrupted.ERASURE), working("erasing") as begins:
        receipt = erasure.erase(owner, dataset, where, lambda step: begins(f"erasing: {step}"))
    if as_json:
        emit(receipt)
    else:
        _show_receipt(receipt, where)


def _everywhere(owner: Tenant, where: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Erase in all datasets; exit code 1 if data that mention the value were left out."""
    scope = everywhere.find(owner, where)
    if dry_run or not yes:
        previews = everywhere.preview(owner, scope)
        table_counts = everywhere.count_tenant_tables(owner, scope)
        if dry_run:
            omissions = list(everywhere.find_omissions(owner, scope, table_counts))
            counted = {
                count.table: count.rows for count in table_counts if count.has_column and not count.reason
            }
            if as_json:
                emit({"datasets": previews, "own_tables": counted, "left_out": omissions})
                return
            rows = ((slug, s.rows, s.raw_events, s.dead_letters) for slug, s in previews.items())
            show_table(("dataset", "rows", "raw events", "dead letters"), rows, empty="")
            if counted:
                show_table(("own table", "rows"), counted.items(), empty="")
            _show_omissions(omissions)
            return
        _confirm(owner, previews.values(), sum(count.rows for count in table_counts))
    with interrupted.leaves(interrupted.ERASURE), working("erasing") as begins:
        receipts = everywhere.erase(owner, scope, lambda step: begins(f"erasing from {step}"))
        begins("searching for data that is not covered")
        became = everywhere.tenant_table_outcomes(owner, receipts)
        omissions = list(everywhere.find_omissions(owner, scope, became))
    if as_json:
        emit({"datasets": receipts, "left_out": omissions})
    else:
        for receipt in receipts:
            _show_receipt(receipt, scope.where)
            say("")
        _show_omissions(omissions)
    if omissions:
        raise typer.Exit(FAILED)


def _show_omissions(omissions: "Iterable[everywhere.Omission]") -> None:
    for omission in omissions:
        remark(f"not covered: {omission.what}. {omission.fix}")


def _confirm(owner: Tenant, previews: Iterable["erasure.ErasurePreview"], tenant_table_rows: int = 0) -> None:
    if not sys.stdin.isatty():
        raise UserError("erasing needs a confirmation", fix="Check with --dry-run, then add --yes")
    removals = list(previews)
    rows, raw = (
        tenant_table_rows + sum(removal.rows for removal in removals),
        sum(removal.raw_events for removal in removals),
    )
    letters = sum(removal.dead_letters for removal in removals)
    question = (
        f"Erase {rows:,} rows, {raw:,} raw events and {letters:,} dead letters of {owner.slug}, permanently?"
    )
    typer.confirm(question, abort=True, err=True)


def _verify(owner: Tenant, erasure_id: str, where: str, as_json: bool) -> None:
    with working("searching every store"):
        verification = erasure.verified(owner, erasure_id, where)
    if as_json:
        emit(
            {
                "clean": verification.clean,
                "looked_at": verification.searched,
                "leftovers": verification.leftovers,
            }
        )
    else:
        say(f"{'clean' if verification.clean else 'NOT CLEAN'}: searched {_counts(verification.searched)}")
        for leftover in verification.leftovers:
            say(f"left: {leftover}")
    if not verification.clean:
        remark("Run the erasure again to remove the rest.")
        raise typer.Exit(FAILED)


def _counts(searched: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {store}" for store, count in searched.items())


def _show_preview(preview: "erasure.ErasurePreview", as_json: bool) -> None:
    if as_json:
        emit(preview)
        return
    say(
        f"would remove {preview.rows:,} rows from {preview.files:,} data files and {preview.raw_events:,} "
        f"events from {preview.raw_objects:,} raw objects, and empty {preview.dead_letters:,} dead letters"
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
            *((f"rows of {table['table']}", table["rows"]) for table in receipt["own_tables"]),
            ("verified", f"nothing is left in {_counts(receipt['verified']['looked_at'])}"),
        )
    )
    if letters["replayed"]:
        remark(
            f"{letters['replayed']:,} of the dead letters had been replayed. The events that were "
            "published then are covered only if their offsets are. Erase again once everything is settled"
        )
    if letters["unreadable"]:
        remark(
            f"{letters['unreadable']:,} dead letters are not JSON and contain the value in their "
            f"bytes. Inspect them with pulse dlq show: {', '.join(letters['unreadable_ids'])}"
        )
    rows = ((place["where"], place["until"] or "permanently", place["why"]) for place in receipt["remains"])
    show_table(("remains", "until", "why"), rows, empty="Nothing remains")
    field = where.partition("=")[0]
    say(f"check it: pulse erase {receipt['tenant']} --where {field}=... --verify {receipt['erasure_id']}")
