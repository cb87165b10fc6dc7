"""The demo's second half: an operational database of airlines, airports and planes, which pipes copy.

The database stands for one that a tenant has anyway. It lies on the embedded Postgres, and Pulse reads it
with a role that may do nothing else. Its tables begin as the package has them and change between two runs;
then they are compared with the lake, row by row. A transform rolls up departures, which are events, by the
planes' manufacturers.
"""

import asyncio
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import conninfo, sql

from pulse_api.demo import source
from pulse_api.demo.run import PATIENCE_S
from pulse_pipelines import pipes
from pulse_pipelines.ask import local
from pulse_pipelines.ask.read import QueryResult
from pulse_pipelines.domain.pipes import Definition, PostgresTable, Transform
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities.syncs import Sync
from pulse_pipelines.pipes import addresses
from pulse_resources.errors import AlreadyExists, Terminal
from pulse_resources.settings import load_settings

TENANT = "airline_ua"
SOURCE = "operations"
DATABASE = "pulse_demo_operations"
READER = "pulse_demo_reader"
POLL_S = 0.5

TABLES: dict[str, LiteralString] = {
    "airlines": "carrier text PRIMARY KEY, name text",
    "airports": "faa text PRIMARY KEY, name text, lat float8, lon float8, alt int, tz int, dst text, "
    "tzone text",
    "planes": "tailnum text PRIMARY KEY, year int, type text, manufacturer text, model text, engines int, "
    "seats int, speed int, engine text",
}
CHANGES: tuple[tuple[str, str, LiteralString], ...] = (
    ("airports", "written", "UPDATE airports SET alt = alt + 1 WHERE tzone = 'America/Phoenix'"),
    ("planes", "written", "UPDATE planes SET seats = seats + 2 WHERE manufacturer = 'EMBRAER'"),
    ("planes", "written", "INSERT INTO planes SELECT 'N' || n || 'NEW', 2014 FROM generate_series(1, 25) n"),
    ("planes", "deleted", "DELETE FROM planes WHERE year < 1985"),
)
"""Between the two runs: the table, what becomes of its rows, and the statement."""
ROLLUP = "manufacturers"
"""Pipe and dataset of departures by the planes' manufacturer."""
SHOWN = 5


def rollup(planes: str) -> str:
    """The query of the rollup, for Spark and DuckDB, given the name of the planes' latest state."""
    return (
        "SELECT p.manufacturer AS id, count(*) AS departures, sum(d.dep_delay) AS minutes_late "  # noqa: S608
        f"FROM departures AS d JOIN {planes} AS p ON p.tailnum = d.tailnum "
        "WHERE p.manufacturer IS NOT NULL GROUP BY p.manufacturer"
    )


@dataclass(frozen=True)
class TableLine:
    """A table of the source, and the outcome of its pipe."""

    name: str
    rows: int
    runs: Sequence[Sync]
    expected: Mapping[str, int]
    """What the second run had to find: rows written (inserted or updated), and deleted."""
    differing: int
    """Rows that only the source or only the lake has; one that is otherwise in each counts twice."""

    def count(self, outcome: str) -> int:
        """Entities of both runs."""
        return sum(getattr(run, outcome) for run in self.runs)

    @property
    def balanced(self) -> bool:
        last = self.runs[-1]
        counts = {"written": last.created + last.changed, "deleted": last.deleted}
        ended = all(run.state == SyncState.DONE and not run.refused for run in self.runs)
        return ended and counts == self.expected and not self.differing

    @property
    def document(self) -> dict[str, Any]:
        """The line as it is in demo-report.json."""
        counts = {name: self.count(name) for name in ("created", "changed", "unchanged", "deleted")}
        return {"rows": self.rows, **counts, "differing": self.differing, "balanced": self.balanced}


def register(tenant: Tenant) -> None:
    """Create the database from the package, store its address as a source, and create missing pipes."""
    settings = load_settings().postgres
    password = secrets.token_urlsafe(24)
    with psycopg.connect(settings.superuser_url(), autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [READER]).fetchone():
            connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(READER)))
        change = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}")
        connection.execute(change.format(sql.Identifier(READER), sql.Literal(password)))
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    with _database() as connection, connection.transaction():
        for name, columns in TABLES.items():
            table = sql.Identifier(name)
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table, sql.SQL(columns)))
            with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(table)) as copy:
                for row in source.read(f"{name}.csv").to_pylist():
                    copy.write_row(list(row.values()))
            connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(table, sql.Identifier(READER)))
    as_reader = {"dbname": DATABASE, "user": READER, "password": password}
    _store_address(tenant, conninfo.make_conninfo(settings.superuser_url(), **as_reader))
    for name in TABLES:
        with suppress(AlreadyExists):
            pipes.create(tenant, Definition(name, name, PostgresTable(SOURCE, name)))


def run(tenant: Tenant) -> list[TableLine]:
    """Copy the tables, change them, copy them again, and compare.

    Raises:
        Terminal: a run failed, or did not end.
    """
    first = _run_pipes(tenant, TABLES)
    expected = _change()
    second = _run_pipes(tenant, TABLES)
    return [
        TableLine(name, rows, (first[name], second[name]), expected[name], differing)
        for name, (rows, differing) in compare(tenant).items()
    ]


def largest_rollup_rows(tenant: Tenant) -> tuple[list[dict[str, Any]], int]:
    """The largest rows of a transform of events and entities, and how many rows DuckDB computes otherwise.

    Raises:
        Terminal: the transform failed, or did not end.
    """
    with suppress(AlreadyExists):
        pipes.create(tenant, Definition(ROLLUP, ROLLUP, Transform(rollup("planes"))))
    _run_pipes(tenant, [ROLLUP])
    with local.queries(tenant) as query:
        names = "id, departures, minutes_late"
        rows = _rows(query, f"SELECT {names} FROM {ROLLUP}__latest ORDER BY departures DESC, id")  # noqa: S608
        expected = _rows(query, rollup("planes__latest"))
    expected_rows, stored_rows = ({tuple(row.values()) for row in result} for result in (expected, rows))
    return [dict(row) for row in rows[:SHOWN]], len(expected_rows ^ stored_rows)


def _run_pipes(tenant: Tenant, names: Collection[str]) -> dict[str, Sync]:
    """Run pipes, and wait until what they have sent has settled, and deletions too."""
    before = {name: pipes.last_sync(pipes.find(tenant, name)) for name in names}
    for name in names:
        pipes.ask(tenant, name, full=True)
    ended_syncs: dict[str, Sync] = {}
    until = time.monotonic() + PATIENCE_S
    while missing := sorted(set(names) - ended_syncs.keys()):
        if time.monotonic() > until:
            raise Terminal(
                f"the pipes {', '.join(missing)} did not end in {PATIENCE_S:.0f} s",
                fix=f"Look at `pulse pipe status {tenant.slug} {missing[0]}` and the runs in the Dagster UI",
            )
        time.sleep(POLL_S)
        for name in missing:
            if (ended := pipes.ended(tenant, name, after=before[name])) is not None:
                ended_syncs[name] = ended
    return ended_syncs


def _change() -> dict[str, dict[str, int]]:
    changed = {name: {"written": 0, "deleted": 0} for name in TABLES}
    with _database() as connection, connection.transaction():
        for table, outcome, statement in CHANGES:
            changed[table][outcome] += connection.execute(statement).rowcount
    return changed


def compare(tenant: Tenant) -> dict[str, tuple[int, int]]:
    """The rows of each source table, and the number of rows that only the source or only the lake has."""
    differences = {}
    with _database() as connection, local.queries(tenant) as query:
        for name, columns in TABLES.items():
            names = [column.split()[0] for column in columns.split(", ")]
            select = f"SELECT {', '.join(names)} FROM "  # noqa: S608 - from constants
            source_rows = set(connection.execute(select + name))
            rows = _rows(query, f"{select}{name}__latest")
            lake_rows = {tuple(row[name] for name in names) for row in rows}
            differences[name] = len(source_rows), len(source_rows ^ lake_rows)
    return differences


def _rows(query: local.Query, text: str) -> Sequence[Mapping[str, Any]]:
    async def run() -> QueryResult:
        return await query(text)

    return asyncio.run(run()).rows


@contextmanager
def _database() -> "Iterator[psycopg.Connection[Any]]":
    with psycopg.connect(load_settings().postgres.superuser_url(DATABASE), autocommit=True) as connection:
        yield connection


def _store_address(tenant: Tenant, address: str) -> None:
    """Store the source's address, as an operator would."""
    path = addresses.file(tenant, SOURCE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(address)
