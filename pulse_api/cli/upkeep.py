"""`pulse upkeep`: compaction, expiry, orphan removal and retention: run now, plan, history."""

from contextlib import ExitStack
from functools import cache
from typing import Annotated

import typer

from pulse_api.cli import complete, interrupted
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, show_table
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance import history, policy, run
from pulse_resources import settings, spark

app = typer.Typer(help="Table maintenance: compaction, history, orphan files, retention.")

Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Only tables of this tenant.", autocompletion=complete.tenants)
]
Slug = Annotated[str | None, typer.Option("--dataset", help="Only datasets with this slug.")]


@app.callback(invoke_without_command=True)
def upkeep(
    context: typer.Context,
    tenant: Tenant = None,
    slug: Slug = None,
    task: Annotated[
        list[Task] | None, typer.Option(help="Only these tasks; repeat the option for more than one.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be done, and why.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1, help="Start no new task after this time; by default the setting upkeep.run_seconds."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the maintenance that tables need now, without waiting for Dagster.

    Exit code 1 if a task failed, or if a table had been rolled back.

    Example: pulse upkeep --tenant acme --plan
    """
    if context.invoked_subcommand:
        return
    if tenant is not None:
        registry.find_tenant(tenant)
    needs = [need for need in policy.needs(tenant, slug) if not task or need.task in task]
    if plan:
        if as_json:
            emit(needs)
            return
        rows = ((n.tenant.slug, n.slug, n.day, n.task.value, n.reason) for n in needs)
        show_table(("tenant", "dataset", "day", "task", "why"), rows, empty="Nothing needs upkeep")
        return
    limit = seconds or settings.load_settings().upkeep.run_seconds
    done = []
    with interrupted.leaves(interrupted.UPKEEP), ExitStack() as opened:
        session = cache(lambda: opened.enter_context(spark.session()))  # started only if a task needs Spark
        for ended in run.run(session, needs, run_id=None, seconds=limit):
            done.append(ended)
            remark(f"{ended.tenant} {ended.dataset} {ended.day or ''} {ended.task}: {ended.outcome}")
    _show(done, as_json, "Nothing needed upkeep")
    if any(completed.outcome in ("failed", "rolled_back") for completed in done):
        raise typer.Exit(FAILED)


@app.command("history")
def show_history(
    tenant: Tenant = None,
    slug: Slug = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of tasks to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what upkeep did, newest first: by hand and by Dagster.

    Example: pulse upkeep history --tenant acme --limit 20
    """
    _show(history.read(tenant, slug, limit), as_json, "Upkeep has done nothing yet")


def _show(tasks: "list[history.Done]", as_json: bool, empty: str) -> None:
    if as_json:
        emit(tasks)
        return
    columns = ("began", "tenant", "dataset", "day", "task", "outcome", "before", "after", "seconds", "detail")
    rows = (
        (
            d.started_at,
            d.tenant,
            d.dataset,
            d.day,
            d.task,
            d.outcome,
            _numbers(d.before),
            _numbers(d.after),
            d.seconds,
            d.detail,
        )
        for d in tasks
    )
    spare = ("detail", "before", "after", "seconds", "began", "day")
    show_table(columns, rows, empty=empty, spare=spare)


def _numbers(values: dict[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in values.items())
