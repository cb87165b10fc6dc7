"""Batches, compaction, expiry, orphan removal and backfills on the same tables, concurrently."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from chaos import batches
from chaos.load import DAYS, NOW, SCHEMAS, Load
from chaos.scenario import Outcome, Told
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.surroundings import with_settings
from pulse_pipelines import registry
from pulse_pipelines.backfill import backfill
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance.policy import Need
from pulse_pipelines.maintenance.run import run as upkeep
from pulse_resources import spark
from pulse_resources.errors import Transient

EVENTS = 60
OF_A_DAY = (Task.MERGE, Task.SORT)
OF_A_TABLE = (Task.MANIFESTS, Task.EXPIRE, Task.SWEEP)
EAGER = {
    "UPKEEP__HISTORY_HOURS": 0,
    "UPKEEP__HISTORY_SNAPSHOTS": 5,
    "UPKEEP__HISTORY_MINIMUM": 2,
    "UPKEEP__ORPHAN_HOURS": 0,
}
"""Upkeep keeps the allowed minimum, so that a wrong removal shows at once."""


def run(stack: Stack | None, seed: int, amount: float, told: Told) -> Outcome:
    """Run all writers on one tenant's tables for some minutes.

    Raises:
        AssertionError: a batch, a task or a backfill failed other than by giving way.
    """
    sent, load, commits = Sent(batches.make_tenant()), Load(seed), Counter[str]()
    tenant, began = sent.tenant, time.monotonic()
    until = began + 60 * amount
    failed: list[BaseException] = []

    def guarded(work: Callable[[Tenant, random.Random], str], number: int) -> None:
        draw = random.Random(seed + number)
        try:
            while time.monotonic() < until and not failed:
                try:
                    commits[work(tenant, draw)] += 1
                except Transient:
                    commits[f"{work.__name__.strip('_')} gave way"] += 1
        except BaseException as error:
            failed.append(error)

    writers = [
        threading.Thread(target=guarded, args=(work, number), daemon=True)
        for number, work in enumerate((_upkeep, _upkeep, _backfill), 1)
    ]
    with with_settings(**batches.ENDLESS_ATTEMPTS, **EAGER):
        _ingest(sent, load)
        for writer in writers:
            writer.start()
        while time.monotonic() < until and not failed:
            _ingest(sent, load)
            commits["batch"] += 1
            told(min(amount, (time.monotonic() - began) / 60))
        for writer in writers:
            writer.join()
        batches.publish_overdue()
    if failed:
        raise AssertionError(f"a writer failed: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return Outcome([sent], f"{amount:g} minutes", places=commits)


def _ingest(sent: Sent, load: Load) -> None:
    sent.send(load.events(EVENTS))
    batches.finish(batches.plan([sent.tenant]))


def _upkeep(tenant: Tenant, draw: random.Random) -> str:
    slug, task = draw.choice(tuple(SCHEMAS)), draw.choice(OF_A_DAY + OF_A_TABLE)
    day = (NOW - timedelta(days=draw.randrange(DAYS))).date() if task in OF_A_DAY else None
    dataset = registry.find_dataset(tenant, slug)
    need = Need(tenant, dataset.dataset_id, slug, task, "chaos", 1, day)
    with spark.session() as session:
        (done,) = upkeep(lambda: session, [need], run_id=None, seconds=600)
    assert done.outcome != "failed", f"{task} of {slug} failed: {done.detail}"
    return task if done.outcome == "done" else f"{task} gave way"


def _backfill(tenant: Tenant, draw: random.Random) -> str:
    slug, day = draw.choice(tuple(SCHEMAS)), (NOW - timedelta(days=draw.randrange(DAYS))).date()
    with spark.session() as session:
        backfill(session, tenant, slug, day, parallelism=2)
    return "backfill"
