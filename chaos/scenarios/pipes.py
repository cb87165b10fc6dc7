"""SIGKILL of whatever runs pipes of every kind, while others write their sources.

Tables of another Postgres are brought by capturing changes, as a whole, as files and as events. What has
come is brought on: by a feed and a transform to other datasets, to a table of Postgres and to a service by
HTTP.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from chaos import api, batches, inside, piped
from chaos.batches import Blow
from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.sources import SOURCE, Folder, capturing, stored_source
from chaos.stack import Stack
from chaos.surroundings import with_settings
from chaos.writer import TABLE, Source, Writer
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.ingest import attempts, plan, sync_deletions
from pulse_pipelines.registry import keys
from pulse_resources.errors import PulseError

RUN = ("pipe.looked", "pipe.begun", "pipe.loaded", "pipe.sent")
"""Fail points of each run that brings something to a dataset."""
DELETIONS = ("deletions.before_decide", "deletions.before_publish", "deletions.after_publish")
"""Fail points of a batch that settles a full run."""
SWEEPS = ("sink.before_swept", "sink.after_swept")
"""Fail points of a run that brings a sink everything again."""
AFTER_RESET = ("pipe.before_slot", *DELETIONS, *SWEEPS)
"""Fail points of a pipe that was reset."""
WATCH = ("pipe.advanced", "pipe.moved_on")
BATCH = (
    "heads.before_advance",
    "heads.after_advance",
    "sync.after_note",
    "settle.before_commit",
    "settle.after_commit",
    "after.settle",
    "after.send_deletions",
    *DELETIONS,
)
CLAIMS = ("claims.before_add", "claims.after_add")
"""Fail points of a batch that lands events."""


@dataclass(frozen=True)
class Kind:
    """A pipe of the scenario. It has the rows of a table of the source."""

    label: str
    table: str
    members: Mapping[str, Any]
    """Members of the pipe's definition; its name and dataset are added."""
    points: tuple[str, ...] = RUN
    after: str | None = None
    """The pipe that brings what it reads."""


PIPES: Mapping[str, Kind] = {
    "captured": Kind(
        "changes",
        "captured",
        {"source": SOURCE, "table": "captured", "mode": "changes"},
        (*RUN, "pipe.advanced", "pipe.before_slot"),
    ),
    "copied": Kind("table", "copied", {"source": SOURCE, "table": "copied"}),
    "filed": Kind("files", "filed", {"source": "depot", "path": "*.ndjson", "key": ["fleet", "tail"]}),
    "noted": Kind(
        "events",
        "copied",
        {"source": SOURCE, "table": "noted", "timestamp": "at", "mode": "incremental", "cursor": "number"},
    ),
    "fed": Kind(
        "feed",
        "captured",
        {"source": "itself", "feed": "/v1/datasets/captured/entities"},
        after="captured",
    ),
    "computed": Kind(
        "transform",
        "copied",
        {"transform": "SELECT id, fleet, tail, seats, notes FROM copied"},
        (*RUN, "pipe.computed"),
        "copied",
    ),
    "sunk": Kind(
        "sink, a table",
        "captured",
        {"from": "captured", "to": SOURCE, "table": "sunk"},
        ("sink.held", "sink.written", "sink.before_commit", "sink.after_commit", *SWEEPS),
        "captured",
    ),
    "pushed": Kind(
        "sink, a service",
        "copied",
        {"from": "copied", "to": "receiver"},
        ("push.before_request", "push.answered", "push.confirmed"),
        "copied",
    ),
}
"""Each after what it reads. All but `sunk` are datasets, too: `pushed` is what the service has received."""
TABLES = {"sunk": piped.SUNK, "noted": piped.NOTED}
"""Made in the source when their pipe is."""
RANDOM = "at a random moment"
LONGEST_S = 3.0
ROUNDS_COMPARED = 8
"""A comparison with the source after this many rounds."""
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Scene:
    """The tenant, its pipes, and their source."""

    tenant: Tenant
    names: tuple[str, ...]
    source: Source
    writer: Writer
    folder: Folder | None
    killed: Counter[str] = field(default_factory=Counter)

    def files(self, source: Source) -> None:
        """Write the files again."""
        if self.folder:
            piped.export(source, "filed", self.folder)


def run(
    stack: Stack | None,
    seed: int,
    amount: float,
    report_progress: ReportProgress,
    names: Collection[str] = tuple(PIPES),
) -> Outcome:
    """Kill runs, watches and batches; compare with the source now and then."""
    draw, findings = random.Random(seed), list[Finding]()
    with _scene(seed, tuple(name for name in PIPES if name in names)) as scene:
        blows, killed = _blows(draw, scene), scene.killed
        with scene.writer.writing():
            rounds = 0
            while killed.total() < amount and not findings and rounds < 20 + 3 * amount:
                rounds += 1
                action, name, blow = next(blows)
                if _strike(scene, action, name, blow):
                    killed[_describe_blow(action, name, blow)] += 1
                    report_progress(killed.total())
                if rounds % ROUNDS_COMPARED == 0:
                    findings += _compare(scene)
            findings += _compare(scene)
        for name in reversed(scene.names):
            pipes.delete(scene.tenant, name)
        sizes = (piped.size(scene.tenant, name) for name in scene.names if name != "sunk")
        harm = f"{killed.total()} kills, {scene.writer.count:,} statements"
        return Outcome([], harm, findings, places=killed, events=sum(sizes))


@contextmanager
def _scene(seed: int, names: tuple[str, ...]) -> Iterator[Scene]:
    tenant = registry.create_tenant(f"p{random.SystemRandom().randrange(16**12):012x}")
    tables = tuple(dict.fromkeys(PIPES[name].table for name in names))
    with ExitStack() as entered:
        entered.enter_context(with_settings(**batches.ENDLESS_ATTEMPTS))
        source = entered.enter_context(capturing(tenant))
        folder = Folder() if "filed" in names else None
        if folder:
            entered.enter_context(stored_source(tenant, folder.address, "depot"))
        if {"fed", "pushed"} & set(names):
            key = quote(keys.issue_key(tenant, "chaos", [KeyScope.READ, KeyScope.COLLECT]).text, "")
            place = f"http://bearer:{key}@127.0.0.1:{entered.enter_context(api.served())}"
            entered.enter_context(stored_source(tenant, place, "itself"))
            entered.enter_context(stored_source(tenant, f"{place}/v1/datasets/pushed/entities", "receiver"))
        scene: Scene
        writer = Writer(source.info.dsn, seed, tables, lambda source: scene.files(source))
        scene = Scene(tenant, names, source, writer, folder)
        for table in tables:
            source.execute(TABLE.format(table))
        for _ in range(30):
            writer.write(source)
        scene.files(source)
        for name in names:
            _create(scene, name)
        yield scene


def _create(scene: Scene, name: str) -> None:
    kind, tenant = PIPES[name], scene.tenant
    if kind.after:
        _bring(tenant, kind.after)
        _settle(tenant)
    if name in TABLES:
        scene.source.execute(TABLES[name])
    if name == "pushed":
        uri = registry.find_dataset(tenant, "copied").schema_uri
        registry.create_dataset(tenant, name, uri, kind=DatasetKind.ENTITIES)
    members = {"pipe": name, **kind.members}
    pipes.create(tenant, definition(members if "from" in members else members | {"dataset": name}))
    if name not in TABLES:
        syncs.allow(tenant, name, 1)


def _blows(draw: random.Random, scene: Scene) -> Iterator[tuple[str, str, Blow]]:
    """Steps that have not killed yet, in any order, and random moments, in turn."""
    into = [name for name in scene.names if name != "sunk"]
    steps = [("run", name, point) for name in scene.names for point in PIPES[name].points]
    entities = [name for name in into if name != "noted"]
    steps += [("ingest", draw.choice(entities), point) for point in BATCH if entities]
    steps += [("ingest", "noted", point) for point in CLAIMS if "noted" in into]
    if "captured" in scene.names:
        steps += [("watch", "captured", point) for point in WATCH]
    while True:
        new = [step for step in steps if _describe_blow(*step[:2], Blow(step[2])) not in scene.killed]
        action, name, point = draw.choice(new or steps)
        yield action, name, Blow(point)
        action, name = draw.choice([("ingest", draw.choice(into)), *(("run", name) for name in scene.names)])
        yield action, name, Blow(after_s=draw.uniform(0.2, LONGEST_S))


def _describe_blow(action: str, name: str, blow: Blow) -> str:
    """A kill, as it is counted."""
    actor = PIPES[name].label if action == "run" else {"ingest": "batch"}.get(action, action)
    return f"{actor}: {blow.point or RANDOM}"


def _strike(scene: Scene, action: str, name: str, blow: Blow) -> bool:
    """Do something in a process that is killed; True if it was, False if it had ended."""
    tenant = scene.tenant
    if upstream := PIPES[name].after:
        _bring(tenant, upstream)
    if blow.point in AFTER_RESET:
        pipes.reset(tenant, name)
    if action == "ingest":
        if blow.point in DELETIONS or (batch := _open_batch(tenant)) is None:
            _prepare(scene, name)
            batch = _open_batch(tenant)
        return batch is not None and batches.strike(batch, blow)
    _settle(tenant)  # a run begins when the one before has settled
    environment = dict(os.environ) | blow.environment
    process = batches.fork(inside.of_pipe, (action, tenant, name, str(batches.log()), environment))
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
        if not sync_deletions.send_of(tenant):
            return


def _prepare(scene: Scene, name: str) -> None:
    """Run a pipe without a fault; files do not change meanwhile, as a slow run would never end."""
    with scene.writer.still if name == "filed" else nullcontext():
        _bring(scene.tenant, name)


def _bring(tenant: Tenant, name: str) -> None:
    """Run a pipe without a fault, once the run that was killed is over."""
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


def _compare(scene: Scene) -> list[Finding]:
    """Differences from the source, once all pipes have brought all of its rows."""
    tenant, findings = scene.tenant, list[Finding]()
    with scene.writer.still:
        scene.files(scene.source)
        for name in scene.names:
            _bring(tenant, name)
        _settle(tenant)
        for name in scene.names:
            table = PIPES[name].table
            rows, deleted = piped.rows(scene.source, table), scene.writer.deleted_ids[table]
            findings += piped.compare(tenant, scene.source, name, rows, deleted)
    return findings
