"""Names and partitions of the dataset assets: day × tenant, with a bounded number of days."""

from datetime import UTC, date, datetime, timedelta

import dagster as dg

from pulse_resources.settings import load_settings


def asset_key(slug: str) -> dg.AssetKey:
    return dg.AssetKey(["lake", slug])


def tenant_partitions(slug: str) -> dg.DynamicPartitionsDefinition:
    """Partitions of the tenants that own a dataset with this slug."""
    return dg.DynamicPartitionsDefinition(name=f"tenants/{slug}")


def grid_start(today: date | None = None) -> date:
    """First day of the grid, always the first of a month: it moves, and the UI recounts, only once a month.

    Args:
        today: in UTC; None: the current day.
    """
    settings = load_settings().dagster
    oldest = (today or datetime.now(UTC).date()) - timedelta(days=settings.partition_days)
    return max(oldest.replace(day=1), settings.partitions_start or date.min)


def first_cell(first_day: date | None) -> date:
    """First day of a dataset's part of the grid: days before its first row would only be missing.

    Args:
        first_day: of its family (see `registry.Family`).
    """
    today = datetime.now(UTC).date()
    return max(grid_start(), min(first_day or today, today))


def partitions(slug: str, first_day: date | None) -> dg.MultiPartitionsDefinition:
    """Day × tenant; address a partition by `dg.MultiPartitionKey`, never by its text."""
    days = dg.DailyPartitionsDefinition(start_date=first_cell(first_day).isoformat(), end_offset=1)
    return dg.MultiPartitionsDefinition({"day": days, "tenant": tenant_partitions(slug)})
