"""`python -m benchmarks <what>`: run a benchmark and print its results."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import (
    archives as archives_,
    ask as questions,
    backfill as backfilling,
    bounds,
    claims,
    collect as collecting,
    control_room as rooms,
    curated,
    definitions as definitions_,
    full_table,
    growth as growths,
    hops as transforms,
    lake as lakes,
    load,
    manifests as manifests_,
    pipes as piping,
    preview as previews,
    puts as puts_,
    sinks as sinking,
    sql as asking,
    states as stating,
    steady,
    throughput as backlogs,
    tick as ticks,
    upkeep as upkeeping,
)
from benchmarks.registered import Registry
from benchmarks.sampling import repeated
from chaos import api
from chaos.surroundings import PULSE, forget_connections, pulse
from pulse_api.demo.run import ledger, wait_until_settled
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import spark
from pulse_resources.local.layout import Layout
from pulse_resources.local.status import status
from pulse_resources.settings import load_settings

GOAL = 120_000
"""Goal in events per second, on two cores with all services on them."""

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
console = Console()


@app.command()
def throughput(
    events: Annotated[int, typer.Option(help="Events in the backlog.")] = 2_000_000,
    tenants: Annotated[int, typer.Option(help="Tenants that they are spread over.")] = 10,
    peer: Annotated[bool, typer.Option(help="Run the peers, too (see benchmarks/peers).")] = True,
) -> None:
    """A backlog through everything, against peers that take the same events, and the goals."""
    with stack():
        owners = load.make_tenants(tenants)
        result = backlogs.measure(console, owners, events, with_peers=peer)
        _assert_balanced(owners)
    title = f"{events:,} events of {result.size} bytes, {tenants} tenants"
    table = Table("what", "events/s", "Pulse is", "goal", title=title)
    table.add_row("Pulse, everything on: planned → settled", f"{result.rate:,.0f}", "", f"{GOAL:,}")
    table.add_row("Pulse, while batches ran", f"{result.busy_rate:,.0f}", "", "")
    for row in result.peers:
        goal = f"{row.goal:g} ×" if row.goal else ""
        table.add_row(row.label, f"{row.rate:,.0f}", f"{result.rate / row.rate:.2f} ×", goal)
    console.print(table)
    _print_shares("processor time of Pulse, by service", result.processor_seconds, events)
    _print_shares("time of Pulse, by step", result.step_seconds, events)


@app.command()
def pairs(
    count: Annotated[int, typer.Option(help="(tenant, dataset) pairs.")] = 100,
    datasets: Annotated[int, typer.Option(help="Datasets of a tenant.")] = 1,
    events: Annotated[int, typer.Option(help="Events of each pair.")] = 100,
) -> None:
    """Many pairs that become due at once: how long until all are settled."""
    with stack("--without-dagster"):
        owners = load.make_tenants(count // datasets, datasets)
        before = ledger(owners)
        load.send(console, owners, count * events, datasets)
        since = datetime.now(UTC)
        pulse("up")
        wait_until_settled(console, owners, before, count * events)
        wall = backlogs.wall_seconds(since)
        _assert_balanced(owners)
    console.print(f"{count} pairs with {events} events each: settled {wall:.1f} s after they were planned")


@app.command()
def memory() -> None:
    """The stack's memory idle, and at most while the demo's whole year runs."""
    with stack():
        time.sleep(20)
        layout = Layout(load_settings().home)
        memory_bytes: list[int] = []
        with repeated(lambda: memory_bytes.append(status(layout).memory_bytes), 1):
            demo = subprocess.run([PULSE, "demo", "--all"], check=False)
        report = json.loads((load_settings().home / "demo-report.json").read_text())
    console.print(
        f"idle {memory_bytes[0] / 2**30:.2f} GiB, at most {max(memory_bytes) / 2**30:.2f} GiB; "
        f"demo exit {demo.returncode}"
    )
    console.print(json.dumps(report["totals"] | {"events_per_second": report["events_per_second"]}))


@app.command()
def collect(
    seconds: Annotated[float, typer.Option(help="How long each load lasts.")] = 15.0,
) -> None:
    """POST /v1/collect with one event and with a hundred per request, the broker beside it."""
    table = Table("events per request", "connections", "requests/s", "events/s", "p50 ms", "p99 ms")
    with stack("--without-dagster"), api.served() as port:
        for size, connections in ((1, 32), (100, 6)):
            result = collecting.measure(port, events=size, connections=connections, seconds=seconds)
            table.add_row(
                str(size),
                str(connections),
                f"{result.requests_per_second:,.0f}",
                f"{result.events_per_second:,.0f}",
                f"{result.p50_ms:.1f}",
                f"{result.p99_ms:.1f}",
            )
    console.print(table)


@app.command()
def preview(
    rows: Annotated[int, typer.Option(help="Rows of the table.")] = 1_000_000,
    times: Annotated[int, typer.Option(help="Warm previews of each kind.")] = 200,
) -> None:
    """Previews of one table, in this process, one after the other."""
    with stack("--without-dagster"):
        with console.status("building the table"):
            tenant = previews.build(rows)
        commits = previews.DAYS * previews.COMMITS_A_DAY
        table = Table("preview", "first ms", "p50 ms", "p95 ms", title=f"{rows:,} rows, {commits} commits")
        for label, *spent in previews.measure(tenant, times):
            table.add_row(label, *(f"{ms:.1f}" for ms in spent))
    console.print(table)


@app.command()
def archives() -> None:
    """What a Spark worker's look for changed archives takes before each task."""
    packages, usual, ours = archives_.measure()
    table = Table("processor time of a look", "ms", title=f"{packages} packages in archives")
    table.add_row("as Python does it", f"{usual * 1e3:.2f}")
    table.add_row("as Pulse's workers do", f"{ours * 1e3:.2f}")
    console.print(table)


@app.command()
def puts(
    objects: Annotated[int, typer.Option(help="Objects written each time.")] = 1_000,
    size: Annotated[int, typer.Option(help="Bytes of each.")] = 15_000,
    times: Annotated[int, typer.Option(help="Times that each of the two writes them.")] = 3,
) -> None:
    """Writing small objects: by Pulse's own request, and by Arrow's client."""
    table = Table("written by", "ms of the client", "ms of the store", title=f"objects of {size:,} bytes")
    with stack("--only", "minio"):
        for name, client, store in puts_.measure(objects, size, times):
            table.add_row(name, f"{client:.2f}", f"{store:.2f}")
    console.print(table)


@app.command()
def manifests(
    entries: Annotated[int, typer.Option(help="Data files in the manifest.")] = 2_000,
    columns: Annotated[int, typer.Option(help="Columns with statistics.")] = 20,
    times: Annotated[int, typer.Option(help="Reads with each decoder.")] = 7,
) -> None:
    """Reading a manifest, with Pulse's decoder and with those of pyiceberg."""
    table = Table("decoder", "µs per entry", title=f"{entries:,} entries of {columns} columns")
    with TemporaryDirectory() as folder:
        manifest = manifests_.written(Path(folder) / "manifest.avro", entries, columns)
        for name, spent in manifests_.measure(manifest, entries, times):
            table.add_row(name, f"{spent:.1f}")
    console.print(table)


@app.command("sql")
def queries(
    rows: Annotated[int, typer.Option(help="Rows of the table.")] = 1_000_000,
    times: Annotated[int, typer.Option(help="Warm queries of each kind.")] = 100,
    tenants: Annotated[int, typer.Option(help="Tenants that ask at once, five queries each.")] = 10,
) -> None:
    """POST /v1/sql: one query after the other over one table, and those of many tenants at once."""
    with stack("--without-dagster"):
        for commits in (1, previews.COMMITS_A_DAY):
            with console.status("building the table"):
                tenant = previews.build(rows, commits)
            title = f"{rows:,} rows, {previews.DAYS * commits} commits"
            table = Table("query", "first of a server ms", "p50 ms", "p95 ms", title=title)
            for label, *spent in asking.measure(tenant, times):
                table.add_row(label, *(f"{ms:.0f}" for ms in spent))
            console.print(table)
        with console.status("building tables"):
            owners = [previews.build(rows // tenants, 1) for _ in range(tenants)]
        result = asking.together(owners)
    console.print(
        f"{tenants * asking.PER_TENANT} queries of {tenants} tenants at once: {dict(result.statuses)} in "
        f"{result.seconds:.1f} s; each tenant's first answer within {result.slowest_first:.1f} s, its "
        f"last one after {result.earliest_last:.1f} to {result.latest_last:.1f} s"
    )


@app.command()
def ask(
    wrong: Annotated[bool, typer.Option("--all", help="List what was refused, too.")] = False,
) -> None:
    """Questions with gold SQL over flights, weather, planes and airports, asked of the embedded grammar."""
    corpus = json.loads(questions.QUESTIONS.read_text())
    table = Table("schemas", "questions", "right", "refused", "wrong", "right %", title="the grammar")
    with TemporaryDirectory() as folder:
        database = questions.database(Path(folder))
    for name, annotated in (("with titles, units and synonyms", True), ("with names and types alone", False)):
        verdicts = questions.verdicts(database, questions.meanings(annotated=annotated), corpus)
        counts = [
            sum(verdict.outcome == label for verdict in verdicts) for label in ("right", "refused", "wrong")
        ]
        share = f"{100 * counts[0] / len(corpus):.0f}"
        table.add_row(name, str(len(corpus)), *map(str, counts), share)
        for row in verdicts:
            if row.outcome == "wrong" or (wrong and row.outcome == "refused"):
                console.print(f"{row.outcome}: {row.question}\n  {row.sql or row.error}", highlight=False)
    console.print(table)


@app.command()
def freshness(
    tenants: Annotated[int, typer.Option(help="Tenants that events come for.")] = 20,
    rate: Annotated[int, typer.Option(help="Events per second, of all of them.")] = 1_000,
    seconds: Annotated[float, typer.Option(help="How long they come.")] = 120.0,
) -> None:
    """From accepted to queryable under a steady load, at the default flush and at one of 5 s."""
    table = Table("flush", "p50 s", "p95 s", title=f"{rate:,} events/s of {tenants} tenants")
    for flush in (30, 5):
        os.environ["PULSE_INGEST__FLUSH_SECONDS"] = str(flush)
        with stack():
            result = steady.measure(console, tenants=tenants, rate=rate, seconds=seconds)
        table.add_row(f"{flush} s", *(f"{row:.1f}" for row in result))
    console.print(table)


@app.command("claims")
def claimed(
    levels: Annotated[str, typer.Option(help="Claims of the dataset before.")] = "10000,1000000,100000000",
) -> None:
    """Gate and settle of a batch of 10,000 events, when its dataset has many claims."""
    table = Table("claims", "gate ms, first batch", "gate ms", "settle ms", "bytes per id")
    with stack("--without-dagster"):
        for row in claims.measure(console, [int(level) for level in levels.split(",")]):
            milliseconds = (f"{seconds * 1000:.0f}" for seconds in (row.first_gate, row.gate, row.settle))
            table.add_row(f"{row.ids:,}", *milliseconds, f"{row.bytes_per_id:.1f}")
    console.print(table)


@app.command("merge")
def full(
    rows: Annotated[int, typer.Option(help="Rows, and ids, that are there before.")] = 50_000_000,
    events: Annotated[int, typer.Option(help="New events.")] = 100_000,
) -> None:
    """New events into a dataset with many rows: Pulse, and a Spark job that validates and merges by id."""
    with stack("--without-dagster"):
        steps, merged = full_table.measure(console, rows, events)
    ours = sum(steps.values())
    table = Table("what", "seconds", "Pulse is", title=f"{events:,} events into {rows:,} rows")
    table.add_row("Pulse, all steps of the batch", f"{ours:.2f}", "")
    for step, seconds in steps.items():
        table.add_row(f"  {step}", f"{seconds:.2f}", "")
    table.add_row(
        "Spark Structured Streaming: validated, MERGE by id", f"{merged:.2f}", f"{merged / ours:.1f} ×"
    )
    console.print(table)


@app.command("bounds")
def bound(
    sizes: Annotated[str, typer.Option(help="Events of a batch.")] = "10000,100000,1000000",
    tenants: Annotated[int, typer.Option(help="Tenants that they are spread over.")] = 10,
) -> None:
    """Memory against the size of a batch."""
    table = Table("events of the batch", "service", "most MiB")
    with stack("--without-dagster"):
        for size, peaks in bounds.measure(console, [int(size) for size in sizes.split(",")], tenants):
            for name, most in sorted(peaks.items()):
                table.add_row(f"{size:,}", name, f"{most / 2**20:,.0f}")
    console.print(table)


@app.command("backfill")
def backfills(
    events: Annotated[int, typer.Option(help="Events of the day.")] = 1_000_000,
    times: Annotated[int, typer.Option(help="How often it is rebuilt.")] = 3,
) -> None:
    """One tenant's day, rebuilt from the raw zone and replaced."""
    with stack("--without-dagster"):
        owners = load.make_tenants(1)
        before = ledger(owners)
        load.send(console, owners, events)
        pulse("up")
        wait_until_settled(console, owners, before, events)
        table = Table("rows", "files before", "files", "seconds", "rows/s", title="backfill of one day")
        for done, rate in backfilling.measure(owners[0], datetime.now(UTC).date(), times):
            numbers = (done.rows, done.files_before, done.files_after)
            table.add_row(*(f"{n:,}" for n in numbers), f"{done.seconds:.1f}", f"{rate:,.0f}")
        _assert_balanced(owners)
    console.print(table)


@app.command("curated")
def curating(
    tenants: Annotated[int, typer.Option(help="Tenants with one dataset.")] = 3,
    days: Annotated[int, typer.Option(help="Days of each that changed.")] = 365,
) -> None:
    """All days of some histories at once: the first time, and when all of them changed again."""
    with stack("--without-dagster"):
        cells, first, again = curated.measure(console, tenants, days)
    console.print(f"{cells:,} cells: {cells / first:.1f} per second; again {cells / again:.1f}")


@app.command()
def hops(
    entities: Annotated[int, typer.Option(help="Entities of the dataset that a transform is of.")] = 300_000,
    changes: Annotated[int, typer.Option(help="Of them that change.")] = 1_000,
) -> None:
    """A transform with a join, after a few changes: by what they lead to, and whole."""
    table = Table("what", "computed", "rows", "seconds", "rows/s", "seconds, settled", title=f"{entities:,}")
    with stack("--without-dagster"), spark.session() as session:
        with console.status("building the datasets"):
            owner = transforms.build(entities)
        for row in transforms.measure(session, owner, entities, changes):
            numbers = (f"{row.rows:,}", f"{row.seconds:.1f}", f"{row.rows / row.seconds:,.0f}")
            table.add_row(row.label, row.how, *numbers, f"{row.settled:.1f}")
        _assert_balanced([owner])
    console.print(table)


@app.command()
def tick(
    tenants: Annotated[int, typer.Option(help="Tenants, with two topics of two partitions each.")] = 1_000,
    times: Annotated[int, typer.Option(help="Ticks of each kind.")] = 20,
) -> None:
    """The lag sensor's tick over many tenants, in this process; nothing is ever due."""
    os.environ |= {"PULSE_INGEST__FLUSH_SECONDS": "1e6", "PULSE_INGEST__FLUSH_ROWS": "1000000"}
    with stack("--without-dagster"):
        with console.status("creating topics"):
            owners = ticks.build(tenants)
        table = Table("events", "first s", "p50 s", "p95 s", title=f"{tenants:,} tenants")
        for label, *spent in ticks.measure(owners, times):
            table.add_row(label, *(f"{seconds:.2f}" for seconds in spent))
    console.print(table)


@app.command()
def control_room(
    tenants: Annotated[int, typer.Option(help="Tenants that own every slug.")] = 100,
    slugs: Annotated[int, typer.Option(help="Dataset slugs.")] = 20,
    days: Annotated[int, typer.Option(help="Days of the one slug whose grid is filled.")] = 400,
) -> None:
    """The Dagster UI's own queries, with every cell of one slug's grid filled."""
    table = Table(
        "what", "first s", "then s", "bytes", title=f"{tenants} tenants × {days} days × {slugs} slugs"
    )
    with stack():
        owners, names = rooms.build(tenants, slugs)
        shown = rooms.wait_for_assets(names, owners)
        with rooms.instance() as instance:
            rate = rooms.fill(instance, names[0], owners, days)
        for label, first, later, size in rooms.measure(names, times=5):
            table.add_row(label, f"{first:.2f}", f"{later:.2f}", f"{size:,}")
        table.add_row("definitions, loaded in one process", f"{rooms.load_seconds():.2f}", "", "")
    console.print(table)
    console.print(f"all shown {shown:.0f} s after the last was created; {rate:,.0f} events/s when filling")


@app.command()
def definitions(
    slugs: Annotated[str, typer.Option(help="Dataset slugs.")] = "10,1000,10000",
    tenants: Annotated[int, typer.Option(help="Tenants.")] = 1_000,
    owners: Annotated[int, typer.Option(help="Of them own a dataset of each slug.")] = 5,
) -> None:
    """What loads, reloads and runs' starts take with many slugs, after imports."""
    counts = [int(count) for count in slugs.split(",")]
    rows: dict[str, list[str]] = {}
    with stack("--only", "postgres"):
        registered = Registry(tenants, owners)
        for count in counts:
            for label, spent in definitions_.measure(registered, count):
                rows.setdefault(label, []).append(f"{spent:.2f}")
    table = Table(
        "processor seconds", *(f"{count:,} slugs" for count in counts), title=f"{tenants:,} tenants"
    )
    for label, cells in rows.items():
        table.add_row(label, *cells)
    console.print(table)


@app.command()
def growth(
    kind: Annotated[str, typer.Option("--of", help="tenants, slugs, pipes, keys or batches.")] = "slugs",
    counts: Annotated[str, typer.Option(help="How many there are of these.")] = "10,1000,10000",
    tenants: Annotated[int, typer.Option(help="Tenants, of which one has each slug.")] = 100,
) -> None:
    """Ticks of the sensors, status and reloads, against how much there is of one kind."""
    sizes = [int(count) for count in counts.split(",")]
    rows: dict[str, list[str]] = {}
    with stack("--only", "postgres,minio"):
        registered = Registry(10 if kind == "tenants" else tenants, 1)
        registered.grow(slugs=10)
        for size in sizes:
            for label, spent in growths.measure(registered, kind, size):
                rows.setdefault(label, []).append(f"{spent:.3f}")
    table = Table("processor seconds", *(f"{size:,} {kind}" for size in sizes))
    for label, cells in rows.items():
        table.add_row(label, *cells)
    console.print(table)


@app.command()
def upkeep(
    commits: Annotated[str, typer.Option(help="Commits of the table with a history.")] = "10,1000,5000",
    tenants: Annotated[int, typer.Option(help="Tenants whose needs are decided.")] = 1_000,
) -> None:
    """A commit to a table with history against one to an empty table, compaction, and deciding."""
    table = Table("what", "measured")
    os.environ["PULSE_UPKEEP__MERGE_MINUTES"] = "0"  # an hour of commits passes faster here
    with stack("--without-dagster"), spark.session() as session:
        for label, measured in (
            *upkeeping.compaction(session, 100, 10_000),
            *upkeeping.history(session, [int(level) for level in commits.split(",")]),
            *upkeeping.decisions(tenants, 500),
        ):
            table.add_row(label, f"{measured:,.2f}")
    console.print(table)


@app.command()
def lake(
    peer: Annotated[bool, typer.Option(help="Run the peer, too: Apache's reference server.")] = True,
) -> None:
    """The REST catalog: loadTable of a table of 120 snapshots, and commits to tables of a tenant's own."""
    commits = Table("catalog", "tables", "commits to each", "per second", "p50 ms", "p99 ms", title="commits")
    table = Table("catalog", "connections", "per second", "p50 ms", "p99 ms", "bytes", title="loadTable")

    def measured(name: str, catalog: lakes.Catalog) -> None:
        for connections, rate, p50, p99, size in lakes.measure(catalog, load.DATASET):
            table.add_row(name, str(connections), f"{rate:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{size:,}")
        for tables, writers, rate, p50, p99 in lakes.commits(catalog):
            commits.add_row(name, str(tables), str(writers), f"{rate:,.0f}", f"{p50:.2f}", f"{p99:.2f}")

    with stack("--only", "postgres,kafka,minio,lake"):
        owner = lakes.build()
        measured("Pulse", lakes.ours(owner))
        if peer:
            with lakes.reference(owner, load.DATASET, load_settings().home / "reference.log") as catalog:
                measured("Apache's reference server", catalog)
    console.print(table)
    console.print(commits)


@app.command()
def pipes(
    rows: Annotated[
        int, typer.Option(help="Rows of the table, of 16 columns, 8 of them numeric.")
    ] = 1_000_000,
    changes: Annotated[int, typer.Option(help="Rows that change, and come by one run.")] = 200_000,
    rate: Annotated[int, typer.Option(help="Changes a second, for the freshness.")] = 500,
    seconds: Annotated[float, typer.Option(help="How long they come.")] = 60.0,
    peer: Annotated[bool, typer.Option(help="Run the peers, too (see benchmarks/peers).")] = True,
) -> None:
    """A table of another Postgres by a pipe: all rows, the same again, changes, pages; and its peers."""
    with stack():
        result = piping.measure(
            console, rows=rows, changes=changes, rate=rate, seconds=seconds, with_peers=peer
        )
    columns = ("what", "per second", "of the run alone", "Pulse is", "goal", "processor µs each")
    table = Table(*columns, title=f"{rows:,} rows")
    for label, run, count, goal, peers in (
        ("all rows, asked → settled", result.full, rows, "120,000", result.full_peers),
        ("the same again: no row, no snapshot", result.again, rows, "100,000", result.again_peers),
        (f"changes of {changes:,} rows", result.changes, changes, "60,000", []),
    ):
        rate_of, cost = count / run.seconds, f"{run.processor_seconds.total() / count * 1e6:.1f}"
        table.add_row(label, f"{rate_of:,.0f}", f"{count / run.busy_seconds:,.0f}", "", goal, cost)
        for row in peers:
            peer_goal, ratio = f"{row.goal:g} ×" if row.goal else "", f"{rate_of / row.rate:.2f} ×"
            cost = "" if row.processor_us is None else f"{row.processor_us:.1f}"
            table.add_row(f"  {row.label}", f"{row.rate:,.0f}", "", ratio, peer_goal, cost)
    console.print(table)
    _print_shares("processor time of bringing all rows", result.full.processor_seconds, rows)
    _print_shares("time of bringing all rows, by step", result.steps, rows)
    console.print(
        f"commit → in a page, {result.timed_changes:,} at {rate:,}/s: p50 {result.freshness[0]:.1f} s, "
        f"p95 {result.freshness[1]:.1f} s (goal: 10)\n"
        f"page of {piping.PAGE:,} versions after a random place of {result.versions:,}: p50 "
        f"{result.page[0]:.1f} ms, p95 {result.page[1]:.1f} ms (goal: 50)"
    )


@app.command()
def sinks(
    entities: Annotated[int, typer.Option(help="Entities of the dataset, of 7 properties.")] = 100_000,
) -> None:
    """A dataset of entities to a table of Postgres: the first time, and all of it again."""
    table = Table("what", "entities/s", title=f"{entities:,} entities")
    with stack("--without-dagster"):
        for label, rate_of in sinking.measure(console, entities):
            table.add_row(label, f"{rate_of:,.0f}")
    console.print(table)


@app.command()
def states(
    events: Annotated[int, typer.Option(help="Events of a batch; at most 33,000.")] = 30_000,
    times: Annotated[int, typer.Option(help="Reads of each kind.")] = 1_000,
) -> None:
    """What the state of a dataset of events costs its batches, and reads of it, in this process."""
    table = Table("dataset", "batch µs/event", "of that settle", "ratio", title=f"batches of {events:,}")
    reads = Table("read", "p50 ms", "p95 ms")
    tasks = Table("a file reduced to an event a key", "processor µs/event")
    with stack("--without-dagster"):
        batches, tenant = stating.measure(console, events)
        first = 0.0
        for label, all_steps, settle in batches:
            first = first or all_steps
            row = (f"{seconds / events * 1e6:.1f}" for seconds in (all_steps, settle))
            table.add_row(label, *row, f"{all_steps / first:.2f} ×")
        for label, seconds in stating.reduced(events):
            tasks.add_row(label, f"{seconds / events * 1e6:.2f}")
        for label, p50, p95 in stating.reads(tenant, events, times):
            reads.add_row(label, f"{p50:.2f}", f"{p95:.2f}")
        p50, p95 = stating.window_reads(console, times)
        reads.add_row("a key with windows, of 1,440 minutes", f"{p50:.2f}", f"{p95:.2f}")
    console.print(table)
    console.print(tasks)
    console.print(reads)


@contextmanager
def stack(*options: str) -> Iterator[None]:
    """Start a new stack for the block, and stop it afterwards."""
    home = Path(".pulse-bench").absolute()
    os.environ["PULSE_HOME"] = str(home)
    pulse("down")
    subprocess.run(["rm", "-rf", str(home)], check=True)  # noqa: S607
    pulse("up", *options)
    forget_connections()
    try:
        yield
    finally:
        forget_connections()
        pulse("down")


def _print_shares(title: str, spent: Counter[str], count: int) -> None:
    table = Table(title, "µs each", "share")
    for part, seconds in spent.most_common():
        table.add_row(part, f"{seconds / count * 1e6:.2f}", f"{seconds / spent.total():.0%}")
    console.print(table)


def _assert_balanced(owners: list[Tenant]) -> None:
    with console.status("reconciling"):
        for owner in owners:
            report = reconcile_tenant(owner)
            assert report.balanced, report


if __name__ == "__main__":
    app()
