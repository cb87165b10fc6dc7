"""`pulse usage`: usage of a tenant."""

from dataclasses import asdict
from typing import Annotated

import typer

from pulse_api.cli.arguments import TenantSlug
from pulse_api.cli.output import AsJson, emit, remark, say, show_table
from pulse_api.cli.tenant import limit_text
from pulse_pipelines import registry

app = typer.Typer()


@app.command("usage")
def show_usage(
    tenant: TenantSlug,
    months: Annotated[int, typer.Option(min=1, max=1_200, help="The latest N months.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Show what a tenant used, per month, beside its limits.

    Example: pulse usage acme --months 3
    """
    owner = registry.find_tenant(tenant)
    usage = registry.quotas.find_usage(owner, months)
    if as_json:
        emit({"tenant": owner.slug} | asdict(usage))
        return
    say(f"datasets: {usage.datasets:,} of {limit_text(usage.limits.max_datasets)}")
    say(f"events per month: {limit_text(usage.limits.max_records_per_month)}")
    if usage.over_quota:
        since = f"{usage.over_quota_since:%Y-%m-%d %H:%M} UTC"
        say(f"over the quota: {usage.over_quota:,} events are set aside, the first at {since}")
        remark(f"Once there is room: pulse dlq replay {owner.slug} --reason over_quota")
    rows = [
        (f"{month.month:%Y-%m}", month.accepted, month.landed, month.bytes, f"{month.landed_delta:+,}")
        for month in usage.months
    ]
    columns = ("month", "accepted", "landed", "bytes", "change of landed")
    show_table(columns, rows, empty="Nothing used yet")
