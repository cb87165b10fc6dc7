"""`pulse trace`: the outcome of one event."""

import re
from datetime import date
from typing import Annotated, Any

import typer

from pulse_api.cli import complete
from pulse_api.cli.arguments import TenantSlug, day as parse_day
from pulse_api.cli.output import AsJson, cell, emit, remark, show_fields
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring import trace
from pulse_resources.errors import UserError

app = typer.Typer()

_PLACE = re.compile(r"(pulse\.[0-9a-f]{32}\.events):(\d{1,9}):(\d{1,18})", re.ASCII)


@app.command("trace")
def trace_event(
    tenant: TenantSlug,
    event: Annotated[str, typer.Argument(help="The event's id, or its place: topic:partition:offset.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="The dataset, if several have an event with this id.", autocompletion=complete.datasets
        ),
    ] = None,
    day: Annotated[
        date | None,
        typer.Option(
            parser=parse_day,
            metavar="DAY",
            help="Day of the event's timestamp; only rows of that day are searched.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what became of one event: where it landed, or why it did not.

    The event may be waiting or in a batch; it may have landed (dataset, day, file, snapshot), be a copy of
    one that did, or a dead letter; it may have been replayed, rebuilt or erased. Exit code 2 if there is
    no such event.

    Example: pulse trace acme o-1
    """
    outcome = _find_trace(registry.find_tenant(tenant), event, dataset, day)
    if as_json:
        emit({"state": outcome.state, "settled": outcome.settled} | vars(outcome))
        return
    for fate in outcome.fates:
        show_fields(_fields(fate))
        if fate.dead_letter is not None and fate.dead_letter.resolution is None:
            remark(f"What to do: pulse dlq show {tenant} {fate.dead_letter.letter_id}")
    for line in outcome.looked_at:
        remark(f"Searched {line}")


def _find_trace(tenant: Tenant, event: str, dataset: str | None, day: date | None) -> "trace.Trace":
    place = _PLACE.fullmatch(event)
    if place is None:
        return trace.by_id(tenant, event, dataset=dataset, day=day)
    if place[1] != tenant.topic:
        raise UserError("the topic is another tenant's", fix=f"This tenant's is {tenant.topic}")
    return trace.by_place(tenant, int(place[2]), int(place[3]))


def _fields(fate: "trace.Fate") -> list[tuple[str, Any]]:
    """Known facts about an event, as name and value."""
    place = None if fate.offset is None else f"partition {fate.partition}, offset {fate.offset}"
    fields: list[tuple[str, Any]] = [
        (fate.state.replace("_", " "), fate.detail),
        ("event id", fate.event_id),
        ("dataset", fate.dataset),
        ("place", place),
        ("received at", fate.received_at),
        ("batch", fate.batch_id),
        ("settled at", fate.settled_at),
    ]
    if (row := fate.row) is not None:
        fields += [
            ("timestamp", row.timestamp),
            ("trace id", row.trace_id),
            ("schema version", row.schema_version),
            ("file", row.file),
            ("snapshot", None if row.snapshot_id is None else str(row.snapshot_id)),
            *(
                ("rebuilt", f"by backfill {rebuild.backfill_id}, {cell(rebuild.settled_at)}")
                for rebuild in row.rebuilds
            ),
        ]
    if (letter := fate.dead_letter) is not None:
        fields += [("dead letter", letter.letter_id), ("closed at", letter.resolved_at)]
    return [(name, value) for name, value in fields if value is not None]
