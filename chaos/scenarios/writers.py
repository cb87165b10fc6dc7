"""Batches, compaction, expiry, sweeps and backfills on the same tables, all at once."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from chaos import batches
from chaos.load import DAYS, NOW, SCHEMAS, Load
from chaos.sent import Sent
from pulse_pipelines import registry
from pulse_pipelines.backfill import backfill
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.upkeep.needs import Need, Task
from pulse_pipelines.lake.upkeep.run import run as upkeep
from pulse_resources import spark
from pulse_resources.errors import Transient

EVENTS = 60
OF_A_DAY = (Task.MERGE, Task.SORT)
OF_A_TABLE = (Task.MANIFESTS, Task.EXPIRE, Task.SWEEP)
EAGER = {
    "PULSE_UPKEEP__HISTORY_HOURS": "0",
    "PULSE_UPKEEP__HISTORY_SNAPSHOTS": "5",
    "PULSE_UPKEEP__HISTORY_MINIMUM": "2",
    "PULSE_UPKEEP__ORPHAN_HOURS": "0",
}
"""Upkeep keeps as little as it may, so that what it must not take is taken at once if it is not careful."""


@dataclass
class Wrote:
    sent: list[Sent]
    commits: Counter[str]
    """By writer, how often it came through; and how often it gave way to another."""


def run(seed: int, seconds: float, told: Callable[[int], None]) -> Wrote:
    """Let all writers at one tenant's tables.

    Args:
        seed: of the events, and of what upkeep and backfills do in which order.
        seconds: for how long.
        told: called with the number of batches so far.

    Raises:
        AssertionError: a batch, an upkeep task or a backfill failed otherwise than by giving way.
    """
    wrote = Wrote([Sent(batches.make_tenant())], Counter())
    tenant, load, until = wrote.sent[0].tenant, Load(seed), time.monotonic() + seconds
    failed: list[BaseException] = []

    def guarded(work: Callable[[Tenant, random.Random], str], number: int) -> None:
        draw = random.Random(seed + number)
        try:
            while time.monotonic() < until and not failed:
                try:
                    wrote.commits[work(tenant, draw)] += 1
                except Transient:
                    wrote.commits[f"{work.__name__.strip('_')} gave way"] += 1
        except BaseException as error:
            failed.append(error)

    writers = [
        threading.Thread(target=guarded, args=(work, number), daemon=True)
        for number, work in enumerate((_upkeep, _upkeep, _backfill), 1)
    ]
    with batches.with_environment(batches.ENDLESS_ATTEMPTS | EAGER):
        _ingest(wrote, load)
        for writer in writers:
            writer.start()
        while time.monotonic() < until and not failed:
            _ingest(wrote, load)
            told(wrote.commits["batch"])
        for writer in writers:
            writer.join()
        batches.sweep()
    if failed:
        raise AssertionError(f"a writer failed: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return wrote


def _ingest(wrote: Wrote, load: Load) -> None:
    wrote.sent[0].send(load.events(EVENTS))
    batch = batches.plan([wrote.sent[0].tenant])
    assert batch, "what was sent is not there"
    batches.finish(batch)
    wrote.commits["batch"] += 1


def _upkeep(tenant: Tenant, draw: random.Random) -> str:
    slug, task = draw.choice(tuple(SCHEMAS)), draw.choice(OF_A_DAY + OF_A_TABLE)
    day = (NOW - timedelta(days=draw.randrange(DAYS))).date() if task in OF_A_DAY else None
    dataset = registry.find_dataset(tenant, slug)
    need = Need(tenant, dataset.dataset_id, slug, task, "chaos", 1, day)
    with spark.session() as session:
        outcomes = [done.outcome for done in upkeep(lambda: session, [need], run_id=None, seconds=600)]
        assert "failed" not in outcomes, f"{task} of {slug} failed"
    return task if outcomes == ["done"] else f"{task} gave way"


def _backfill(tenant: Tenant, draw: random.Random) -> str:
    slug, day = draw.choice(tuple(SCHEMAS)), (NOW - timedelta(days=draw.randrange(DAYS))).date()
    with spark.session() as session:
        backfill(session, tenant, slug, day, parallelism=2)
    return "backfill"
