"""`pulse demo`: real flights through the whole pipeline."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from pulse_api.cli import ask, interrupted, stack
from pulse_api.cli.guard import FAILED
from pulse_api.cli.lake import print_rows
from pulse_api.cli.output import AsJson, emit
from pulse_api.console import HOME
from pulse_api.demo import operations, report, run, source
from pulse_pipelines.monitoring import reconcile
from pulse_pipelines.query import preview
from pulse_resources.errors import PulseError
from pulse_resources.local import dagster, front_ends
from pulse_resources.local.provision import external
from pulse_resources.settings import load_settings

app = typer.Typer()
DEFAULT_DAYS = 60


@app.command()
def demo(
    days: Annotated[int, typer.Option(min=1, help="Send the last N days of the year.")] = DEFAULT_DAYS,
    everything: Annotated[bool, typer.Option("--all", help="Send the whole year.")] = False,
    keep_dates: Annotated[bool, typer.Option(help="Keep the dates in 2013.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send real flights and weather of 17 tenants through Pulse, and account for every event.

    Starts the stack if it is not up. Every event goes through POST /v1/collect. Some events are sent
    twice, and the copies are dropped. Flights that never departed do not match their schema, and become
    dead letters. Then pipes bring an operational database of airlines, airports and planes, before and
    after changes. Dagster's sensors launch all runs. Exit code 1 unless every event and every row is
    accounted for; the report is also written to .pulse/demo-report.json.

    Example: pulse demo --days 7
    """
    console = Console(stderr=as_json)
    with ThreadPoolExecutor(1) as reader:  # reading takes seconds, so it overlaps with the start of services
        reading = reader.submit(source.events, None if everything else days, keep_dates)
        stack.bring_up(console)
    stack.announce(console)
    load_settings.cache_clear()  # starting may have changed the addresses
    with interrupted.leaves(interrupted.DEMO):
        document = _accounted(console, reading.result())
    if as_json:
        emit(document)
    if not document["balanced"]:
        raise typer.Exit(FAILED)


def _accounted(console: Console, events: "Sequence[source.Event]") -> dict[str, Any]:
    """Send the events, account for every one, run the pipes, and show it all; the report."""
    settings = load_settings()
    began, since = time.monotonic(), datetime.now(UTC)
    names = source.tenants()
    with console.status("registering 17 tenants"):
        datasets = dict.fromkeys(names, "departures") | {source.OPERATOR: "weather"}
        tenants = run.register(names, datasets)
        fleet = None if "postgres" in external() else tenants[operations.TENANT]
        if fleet is not None:
            operations.register(fleet)
    owners = list(tenants.values())
    before = run.ledger(owners)
    sending = time.monotonic()
    sent = run.send(console, front_ends.api_url(settings), tenants, events)
    sending = time.monotonic() - sending
    run.wait_until_settled(console, owners, before, sum(sent.values()))
    elapsed = time.monotonic() - began
    with console.status("reconciling tables, dead letters and ledger"):
        after = run.ledger(owners)
        dead = report.invalid_events(events)
        lines = [
            report.TenantLine(
                slug,
                sent[slug],
                after[tenant.tenant_id] - before[tenant.tenant_id],
                dead.get(slug, 0),
                reconcile.reconcile_tenant(tenant),
            )
            for slug, tenant in tenants.items()
        ]
        busy = report.busy_seconds(since)
        p50, p95 = report.freshness(owners, since)
    speed = {
        "collect_events_per_second": round(sum(sent.values()) / sending, 1),
        "events_per_second": round(sum(sent.values()) / busy, 1) if busy else 0.0,
        "busy_s": round(busy, 2),
        "elapsed_s": round(elapsed, 2),
        "freshness_p50_s": round(p50, 2),
        "freshness_p95_s": round(p95, 2),
    }
    ui = dagster.url(settings)
    document = report.as_json(lines, speed, dagster_ui=ui, console=f"{settings.api.linked_url}{HOME}")
    largest = max(sent, key=lambda slug: sent[slug])
    print_rows(
        console, preview.preview(tenants[largest], datasets[largest], 2).to_pylist(), f"preview of {largest}"
    )
    report.show(console, lines, document)
    if fleet is None:
        console.print("Pipes are not shown: their database would be on your Postgres")
    else:
        with console.status("bringing a database, changing it, bringing it again"):
            tables = operations.run(fleet)
            largest_rows, differing = operations.largest_rollup_rows(fleet)
        report.show_tables(console, tables)
        print_rows(console, largest_rows, f"departures of {fleet.slug} by its planes' manufacturers")
        document["tables"] = {line.name: line.document for line in tables}
        document[operations.ROLLUP] = {"largest": largest_rows, "differing": differing}
        document["balanced"] &= all(line.balanced for line in tables) and not differing
    largest_airline = max((slug for slug in sent if slug != source.OPERATOR), key=lambda slug: sent[slug])
    try:
        for result in report.answers(tenants, largest_airline):
            console.print(f"\n[bold]{result.question}[/bold]", highlight=False)
            ask.show(console, result)
            document.setdefault("answers", []).append({"question": result.question, "rows": result.rows})
    except PulseError as error:
        console.print(f"No question is answered: {error}", highlight=False, markup=False)
    path = settings.home / "demo-report.json"
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    console.print(
        f"report      {path}\n"
        f"Dagster UI  {dagster.login_url(settings) or ui}\n"
        f"console     {document['console']}: pulse console {largest_airline} signs in",
        highlight=False,
        soft_wrap=True,
    )
    return document
