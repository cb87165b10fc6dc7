"""`pulse backfill`: rebuild days of a dataset from the raw zone."""

from datetime import date, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pulse_api.cli import interrupted
from pulse_api.cli.arguments import DatasetSlug, TenantSlug, day
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, show_table
from pulse_api.demo import run
from pulse_pipelines import backfill, registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import settings, spark
from pulse_resources.errors import PulseError, UserError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

app = typer.Typer()

MAX_DAYS = 3_660


@app.command("backfill")
def backfill_days(
    tenant: TenantSlug,
    slug: DatasetSlug,
    first: Annotated[date, typer.Option("--from", parser=day, metavar="DATE", help="First day, in UTC.")],
    last: Annotated[
        date | None,
        typer.Option("--to", parser=day, metavar="DATE", help="Last day, inclusive; by default the first."),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(help="Schema version for events that name none; by default the current one."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild days of a dataset from the raw zone, each replaced in one commit.

    The result has the same rows, and the day's dead letters that are valid now. The command can run beside
    ingestion and compaction, and can be stopped and repeated. A day that fails is left unchanged; the
    others continue, and the exit code is 1.

    Example: pulse backfill acme orders --from 2026-11-01 --to 2026-11-19
    """
    import psycopg  # an exception's module is imported where it is caught
    from pyspark.errors import PySparkException

    days = _days(first, last or first)
    owner = registry.find_tenant(tenant)
    backfill.choose_version(registry.find_dataset(owner, slug), version)
    done: list[backfill.Backfilled] = []
    failed: dict[date, str] = {}
    interruption = interrupted.leaves(interrupted.BACKFILL)
    with interruption, spark.session() as session, run.progress(Console(stderr=True)) as bar:
        task = bar.add_task(f"{slug} of {tenant}", total=len(days))
        for rebuilt_day in days:
            bar.update(task, description=f"{slug} of {tenant}, {rebuilt_day}")
            try:
                done.append(_rebuild(session, owner, slug, rebuilt_day, version))
            except (PulseError, OSError, psycopg.Error, PySparkException) as error:
                failed[rebuilt_day] = str(error).strip().partition("\n")[0]
            bar.advance(task)
    if as_json:
        emit({"days": done, "failed": {str(rebuilt_day): why for rebuilt_day, why in failed.items()}})
    else:
        _show(done)
        for rebuilt_day, why in failed.items():
            remark(f"{rebuilt_day} is unchanged: {why}")
    if failed:
        raise typer.Exit(FAILED)


def _days(first: date, last: date) -> list[date]:
    count = (last - first).days + 1
    if not 0 < count <= MAX_DAYS:
        raise UserError(
            f"{first} to {last} are {count:,} days" if count > 0 else f"{first} is after {last}",
            fix=f"Give a range of 1 to {MAX_DAYS:,} days, the first with --from and the last with --to",
        )
    return [first + timedelta(days=number) for number in range(count)]


def _rebuild(
    session: "SparkSession", owner: Tenant, slug: str, rebuilt_day: date, version: int | None
) -> "backfill.Backfilled":
    parallelism = settings.load_settings().spark.parallelism
    return backfill.backfill(session, owner, slug, rebuilt_day, version=version, parallelism=parallelism)


def _show(done: "list[backfill.Backfilled]") -> None:
    rows = (
        (row.day, row.rows, row.dead_letters_landed, row.files_before, row.files_after, f"{row.seconds:.1f}")
        for row in done
        if row.snapshot_id is not None
    )
    columns = ("day", "rows", "dead letters that landed", "files before", "files", "seconds")
    show_table(columns, rows, empty="There was nothing to rebuild", spare=("files before", "seconds"))
