"""SIGKILL of whatever brings tables of another Postgres, while others write there."""

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import psycopg

from chaos import batches, inside
from chaos.batches import Blow
from chaos.oracle import Finding
from chaos.scenario import Outcome, Told
from chaos.sources import SOURCE, capturing
from chaos.stack import Stack
from chaos.surroundings import with_settings
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import attempts, deletions, plan
from pulse_pipelines.query import versions
from pulse_pipelines.registry import syncs
from pulse_resources.errors import PulseError

OF_DELETIONS = ("deletions.before_decide", "deletions.before_publish", "deletions.after_publish")
"""Of these a batch comes by that settles a full run."""
STEPS: Mapping[str, tuple[str, ...]] = {
    "run": ("pipe.looked", "pipe.advanced", "pipe.begun", "pipe.loaded", "pipe.sent", "pipe.before_slot"),
    "watch": ("pipe.advanced", "pipe.moved_on"),
    "ingest": (
        *("heads.before_advance", "heads.after_advance", "sync.after_note", "settle.before_commit"),
        *("settle.after_commit", "after.settle", "after.send_deletions", *OF_DELETIONS),
    ),
}
"""Fail points by what passes them."""
OF_SLOTS = ("pipe.before_slot", "pipe.advanced")
"""Of these only runs that capture changes come by."""
RANDOM = "at a random moment"
LONGEST_S = 3.0
ROUNDS_COMPARED = 4
"""A comparison with the source after this many rounds."""
CAPTURED = "captured"
TABLES = {CAPTURED: "changes", "copied": "full"}
"""Tables, which are also pipes and datasets, by the mode in which they are brought."""
TABLE = "CREATE TABLE {} (fleet int, tail text, seats int, notes text, PRIMARY KEY (fleet, tail))"
LARGE = "".join(str(n * n) for n in range(3_000))
"""A value that is stored out of line: the log leaves it out where it has not changed."""
DML = (
    *(("INSERT INTO {t} VALUES (%(a)s, %(b)s, %(c)s, %(d)s) ON CONFLICT DO NOTHING",) * 4),
    *(("UPDATE {t} SET seats = seats + 1 WHERE fleet = %(a)s AND tail <= %(b)s",) * 3),
    "UPDATE {t} SET notes = %(d)s WHERE fleet = %(a)s AND tail = %(b)s",
    "UPDATE {t} SET fleet = 9 - fleet WHERE tail = %(b)s",
    *(("DELETE FROM {t} WHERE fleet = %(a)s AND tail = %(b)s",) * 2),
)
PATIENCE_S = 120.0


class Writer:
    """Writes at random into the tables of a source, in transactions of which some are rolled back."""

    def __init__(self, address: str, seed: int, tables: Sequence[str]) -> None:
        self._draw, self._address, self.tables = random.Random(seed), address, tables
        self.still = threading.Lock()
        """Whoever holds it sees the source without its writes."""
        self.gone: dict[str, set[str]] = defaultdict(set)
        """Ids that were not there at some moment after they had been, by table."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self.count = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._address, autocommit=True) as source:
            while not self._stop.is_set():
                with self.still:
                    self.write(source)
                time.sleep(self._draw.uniform(0, 0.05))

    def write(self, source: "psycopg.Connection[Any]") -> None:
        """One transaction."""
        draw, table = self._draw, self._draw.choice(self.tables)
        before = _ids(source, table)
        with source.transaction(force_rollback=draw.random() < 0.1):
            for _ in range(draw.randrange(1, 6)):
                values = {
                    "a": draw.randrange(1, 4),
                    "b": f"N{draw.randrange(20)}",
                    "c": draw.randrange(9),
                    "d": draw.choice((None, "x", LARGE)),
                }
                # A key that is there already: the transaction goes on without this statement.
                try:
                    with source.transaction():
                        source.execute(draw.choice(DML).format(t=table), values)
                except psycopg.errors.UniqueViolation:
                    continue
                self.count += 1
        if draw.random() < 0.003:  # an empty table would be held for a person
            source.execute(f"TRUNCATE {table}; INSERT INTO {table} VALUES (1, 'N1')")
        self.gone[table] |= before - _ids(source, table)


def _ids(source: "psycopg.Connection[Any]", table: str) -> set[str]:
    return {_id(*row) for row in source.execute(f"SELECT fleet, tail FROM {table}")}


def _id(fleet: int, tail: str) -> str:
    return f'["{fleet}", "{tail}"]'


def run(
    stack: Stack | None, seed: int, amount: float, told: Told, tables: Mapping[str, str] = TABLES
) -> Outcome:
    """Kill runs, watches and batches; compare with the source now and then."""
    draw, killed = random.Random(seed), Counter[str]()
    findings: list[Finding] = []
    tenant = registry.create_tenant(f"p{random.SystemRandom().randrange(16**12):012x}")
    blows = _blows(draw, killed)
    with with_settings(**batches.ENDLESS_ATTEMPTS), capturing(tenant) as source:
        writer = Writer(source.info.dsn, seed, tuple(tables))
        for table, mode in tables.items():
            source.execute(TABLE.format(table))
            said = {"pipe": table, "source": SOURCE, "table": table, "dataset": table, "mode": mode}
            pipes.create(tenant, definition(said))
            syncs.allow(tenant, table, 1)
        for _ in range(30):
            writer.write(source)
        with writer.writing():
            rounds = 0
            while killed.total() < amount and not findings and rounds < 20 + 3 * amount:
                rounds += 1
                what, blow = next(blows)
                captured = what == "watch" or blow.point in OF_SLOTS
                table = CAPTURED if captured else draw.choice(tuple(tables))
                if _strike(tenant, what, blow, table):
                    killed[blow.point or RANDOM] += 1
                    told(killed.total())
                if rounds % ROUNDS_COMPARED == 0:
                    findings += _compare(tenant, source, writer)
            findings += _compare(tenant, source, writer)
        for table in tables:
            pipes.delete(tenant, table)
    harm = f"{killed.total()} kills, {writer.count:,} statements"
    return Outcome([], harm, findings, places=killed, events=sum(len(_log(tenant, t)) for t in tables))


def _blows(draw: random.Random, killed: Mapping[str, int]) -> Iterator[tuple[str, Blow]]:
    """Steps that have not killed yet, in any order; then steps and random moments in turn."""
    steps = [(what, Blow(point)) for what, points in STEPS.items() for point in points]
    while True:
        left = [(what, blow) for what, blow in steps if blow.point not in killed]
        yield draw.choice(left or steps)
        if not left:
            yield draw.choice(tuple(STEPS)), Blow(after_s=draw.uniform(0.2, LONGEST_S))


def _strike(tenant: Tenant, what: str, blow: Blow, table: str) -> bool:
    """Do something in a process that is killed; True if it was, False if it had ended."""
    if blow.point == "pipe.before_slot" or blow.point in OF_DELETIONS:
        pipes.reset(tenant, table)
    if what == "ingest":
        if blow.point in OF_DELETIONS or (batch := _open_batch(tenant)) is None:
            _bring(tenant, table)
            batch = _open_batch(tenant)
        return batch is not None and batches.strike(batch, blow)
    _settle(tenant)  # a run begins when the one before has settled
    environment = dict(os.environ) | blow.environment
    process = batches.fork(inside.of_pipe, (what, tenant, table, str(batches.log()), environment))
    process.join(PATIENCE_S if blow.after_s is None else blow.after_s)
    if process.is_alive():
        process.kill()
    process.join(PATIENCE_S)
    return process.exitcode is not None and process.exitcode < 0


def _open_batch(tenant: Tenant) -> "attempts.OpenBatch | None":
    for batch in attempts.open_batches():
        if tenant.slug in attempts.waiting_in(batch.batch_id):
            return batches.current(batch.batch_id)
    if tenant.tenant_id not in plan.ingest_status().waiting:
        return None
    return batches.plan([tenant])


def _settle(tenant: Tenant) -> None:
    """All that waits, and the deletions that follow from it."""
    while True:
        while (batch := _open_batch(tenant)) is not None:
            batches.finish(batch)
        if not deletions.send_of(tenant):
            return


def _bring(tenant: Tenant, name: str) -> None:
    """A run that nobody kills; one that was killed may hold it up for a moment."""
    until = time.monotonic() + PATIENCE_S
    while True:
        _settle(tenant)
        try:
            inside.run_pipe(tenant, name)
        except PulseError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def _compare(tenant: Tenant, source: "psycopg.Connection[Any]", writer: Writer) -> list[Finding]:
    """Rows that are not the source's, deletions of what was there all along, versions that are doubled."""
    found = []
    with writer.still:
        for table in writer.tables:
            _bring(tenant, table)
        _settle(tenant)
        for table in writer.tables:
            query = f"SELECT fleet, tail, to_json(t) FROM {table} t"
            rows = {
                _id(fleet, tail): {key: value for key, value in row.items() if value is not None}
                for fleet, tail, row in source.execute(query)
            }
            states: dict[str, dict[str, Any] | None] = {}
            hashes: dict[str, Any] = {}
            for version in _log(tenant, table):
                name = version["_id"]
                if name in hashes and hashes[name] == version["_hash"]:
                    found.append(
                        Finding("a version that is as the one before", tenant.slug, f"{table} {name}")
                    )
                if version["_deleted"] and name not in writer.gone[table]:
                    found.append(Finding("deleted, and was there all along", tenant.slug, f"{table} {name}"))
                hashes[name] = version["_hash"]
                content = {key: value for key, value in version.items() if not key.startswith("_")}
                states[name] = None if version["_deleted"] else content
            for name in rows.keys() | states.keys():
                if rows.get(name) != states.get(name):
                    found.append(Finding("differs from the source", tenant.slug, f"{table} {name}"))
    return found


def _log(tenant: Tenant, slug: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    since = None
    while (page := versions.page(tenant, slug, since, 1_000, packed=False)).following != since:
        found += [orjson.loads(line) for line in page.lines.splitlines()]
        since = page.following
    return found
