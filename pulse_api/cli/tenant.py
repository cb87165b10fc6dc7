"""`pulse tenant`: tenants and their limits."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.output import AsJson, emit, emit_or_say, remark, show_fields, show_table
from pulse_pipelines import registry
from pulse_pipelines.domain.quota import MOST, NOT_CONFIGURED, UNLIMITED, Limits, checked_rate
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import UserError

if TYPE_CHECKING:
    from pulse_pipelines.ingest import data_loss

app = typer.Typer(no_args_is_help=True, help="Tenants: the owners of events, schemas and datasets.")

_MEANING = "Positive: a maximum; -1: unlimited; 0: the installation's default."


def _rate(value: float | None) -> float | None:
    try:
        return None if value is None else checked_rate(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value} {error}") from None


def _count(value: int | None) -> int | None:
    if value is None or UNLIMITED <= value <= MOST:
        return value
    raise typer.BadParameter(f"{value} is neither from 0 to {MOST} nor {UNLIMITED} (unlimited)")


MaxEntityDatasets = Annotated[
    int | None, typer.Option(callback=_count, metavar="NUMBER", help=f"Datasets of entities. {_MEANING}")
]
MaxLakeTables = Annotated[
    int | None,
    typer.Option(callback=_count, metavar="NUMBER", help=f"Tables that its engines create. {_MEANING}"),
]
MaxLakeBytes = Annotated[
    int | None, typer.Option(callback=_count, metavar="NUMBER", help=f"Bytes of their files. {_MEANING}")
]
MaxDatasets = Annotated[
    int | None, typer.Option(callback=_count, metavar="NUMBER", help=f"Datasets. {_MEANING}")
]
MaxRecords = Annotated[
    int | None, typer.Option(callback=_count, metavar="NUMBER", help=f"Events in a month. {_MEANING}")
]
PerSecond = Annotated[
    float | None, typer.Option(callback=_rate, metavar="NUMBER", help=f"Rate, averaged. {_MEANING}")
]


@app.command("create")
def create_tenant(
    slug: Annotated[
        str, typer.Argument(help="1 to 63 characters of a-z, 0-9 and _, starting with a letter.")
    ],
    name: Annotated[str | None, typer.Option(help="Display name; the slug by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Register a tenant and create its topics `pulse.<id>.events` and `pulse.<id>.events.dlq`.

    Example: pulse tenant create acme --name "Acme Corporation"
    """
    tenant = registry.create_tenant(slug, name)
    line = f"tenant {slug} has the id {tenant.tenant_id} and the topic {tenant.topic}"
    emit_or_say(_document(tenant), line, as_json)


@app.command("list")
def list_tenants(as_json: AsJson = False) -> None:
    """List all tenants.

    Example: pulse tenant list --json
    """
    tenants = registry.list_tenants()
    if as_json:
        emit([_document(tenant) for tenant in tenants])
        return
    rows = ((tenant.slug, tenant.tenant_id, tenant.namespace) for tenant in tenants)
    show_table(
        ("slug", "id", "namespace"), rows, empty="No tenants yet: pulse tenant create", spare=("namespace",)
    )


@app.command("show")
def show_tenant(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """Show a tenant: its id, topics and namespace, its datasets and the limits in force.

    Example: pulse tenant show acme
    """
    owner = registry.find_tenant(tenant)
    slugs = [dataset.slug for dataset in registry.list_datasets(owner)]
    limits = registry.quotas.find_limits(owner)
    if as_json:
        emit(_document(owner) | {"datasets": slugs, "limits": asdict(limits)})
        return
    show_fields(
        [
            ("slug", owner.slug),
            ("id", owner.tenant_id),
            ("events", owner.topic),
            ("dead letters", owner.dead_letter_topic),
            ("namespace", owner.namespace),
            ("datasets", ", ".join(slugs) or "none"),
            *((name.replace("_", " "), limit_text(value)) for name, value in asdict(limits).items()),
        ]
    )


@app.command("limits")
def tenant_limits(
    tenant: TenantSlug,
    max_datasets: MaxDatasets = None,
    max_records_per_month: MaxRecords = None,
    requests_per_second: PerSecond = None,
    events_per_second: PerSecond = None,
    max_entity_datasets: MaxEntityDatasets = None,
    max_lake_tables: MaxLakeTables = None,
    max_lake_bytes: MaxLakeBytes = None,
    as_json: AsJson = False,
) -> None:
    """Set the limits that options name; without options, show a tenant's limits.

    Example: pulse tenant limits acme --max-datasets 10 --events-per-second 5000
    """
    owner = registry.find_tenant(tenant)
    options = {
        "max_datasets": max_datasets,
        "max_records_per_month": max_records_per_month,
        "requests_per_second": requests_per_second,
        "events_per_second": events_per_second,
        "max_entity_datasets": max_entity_datasets,
        "max_lake_tables": max_lake_tables,
        "max_lake_bytes": max_lake_bytes,
    }
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    in_force = registry.quotas.set_limits(owner, **chosen) if chosen else registry.quotas.find_limits(owner)
    tenant_limits_set = registry.quotas.find_tenant_limits(owner)
    if as_json:
        emit({"tenant": owner.slug, "own": asdict(tenant_limits_set), "in_force": asdict(in_force)})
    else:
        _show_limits(tenant_limits_set, in_force)


@app.command("accept-loss")
def accept_loss(
    tenant: TenantSlug,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which events are lost; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue ingestion of a topic that has lost events which were never ingested.

    If retention removed events before they were ingested, or a topic was recreated or truncated, Pulse
    stops ingesting it rather than skip events silently. This command accepts the loss: it is recorded,
    and what the topic holds now is ingested. If you can, restore the topic instead.

    Example: pulse tenant accept-loss acme --dry-run
    """
    from pulse_pipelines.ingest import data_loss  # it imports pyiceberg, which no other command here needs

    owner = registry.find_tenant(tenant)
    losses = data_loss.find_losses(owner)
    if losses and not dry_run:
        if not yes:
            if not sys.stdin.isatty():
                raise UserError("this needs a confirmation", fix="Check with --dry-run, then add --yes")
            _show_losses(losses)
            typer.confirm(f"Continue without these events of {tenant}, permanently?", abort=True, err=True)
        losses = data_loss.accept(owner, losses)
    if as_json:
        emit({"tenant": owner.slug, "accepted": not dry_run, "losses": losses})
        return
    _show_losses(losses)
    if losses and not dry_run:
        remark("Recorded. What the topic holds now is ingested from here on.")


def _show_losses(losses: "list[data_loss.Loss]") -> None:
    rows = ((loss.partition, loss.position, loss.lost, loss.problem) for loss in losses)
    columns = ("partition", "position", "lost offsets", "problem")
    show_table(columns, rows, empty="Nothing is lost: all waiting events can be ingested")


def _document(tenant: Tenant) -> dict[str, Any]:
    return {
        "tenant_id": tenant.tenant_id,
        "slug": tenant.slug,
        "topic": tenant.topic,
        "dead_letter_topic": tenant.dead_letter_topic,
        "namespace": tenant.namespace,
    }


def _show_limits(tenant_limits_set: Limits, in_force: Limits) -> None:
    names = {name: name.replace("_", " ") for name in asdict(tenant_limits_set)}
    rows = [
        (shown, limit_text(getattr(tenant_limits_set, name)), limit_text(getattr(in_force, name)))
        for name, shown in names.items()
    ]
    show_table(("limit", "own", "in force"), rows, empty="")


def limit_text(value: float) -> str:
    if value in (UNLIMITED, NOT_CONFIGURED):
        return "unlimited" if value == UNLIMITED else "default"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.10g}"
