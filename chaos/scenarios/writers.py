"""Batches, compaction, expiry, orphan removal and backfills on the same tables, concurrently."""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from pyspark.sql.connect.session import SparkSession

from chaos import batches
from chaos.external import EngineWriter, catalog, compare_table, create, engine
from chaos.load import DAYS, NOW, SCHEMAS, Load
from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
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

Work = Callable[[Tenant, random.Random], str]
EVENTS = 60
GAVE_WAY = re.compile("was replaced meanwhile|: Transient: ")
"""Reports of upkeep about files that it did not merge, because an engine committed first."""
UPKEEP_COUNTS = {"merged files": "merged", "removed files": "objects"}
"""Counts in a report of such an upkeep, by their label."""
OF_A_DAY = (Task.MERGE, Task.SORT)
OF_A_TABLE = (Task.MANIFESTS, Task.EXPIRE, Task.ORPHANS)
EAGER = {
    "UPKEEP__HISTORY_HOURS": 0,
    "UPKEEP__HISTORY_SNAPSHOTS": 5,
    "UPKEEP__HISTORY_MINIMUM": 2,
    "UPKEEP__ORPHAN_HOURS": 0,
    "UPKEEP__OWN_ORPHAN_HOURS": 0.02,  # engines' files are known by their age alone
}
"""Upkeep keeps the allowed minimum, so that a wrong removal shows at once."""


def run(
    stack: Stack | None, seed: int, amount: float, report_progress: ReportProgress, *, external: bool = False
) -> Outcome:
    """Run all writers on one tenant's tables for some minutes.

    Args:
        external: engines of the tenant write a table of its own meanwhile, and upkeep looks after it.

    Raises:
        AssertionError: a batch, a task or a backfill failed other than by giving way.
    """
    if not external:
        return _run(seed, amount, report_progress, Sent(batches.make_tenant()), (), list)
    with catalog() as url:
        sent = Sent(batches.make_tenant())
        create(sent.tenant, url)
        engines = [EngineWriter(engine(sent.tenant, url), number) for number in (1, 2)]
        works = (*(writer.write for writer in engines), _tenant_table_upkeep)
        find_differences = partial(compare_table, sent.tenant, engine(sent.tenant, url), engines)
        return _run(seed, amount, report_progress, sent, works, find_differences)


def _run(
    seed: int,
    amount: float,
    report_progress: ReportProgress,
    sent: Sent,
    more: Sequence[Work],
    find_differences: Callable[[], Sequence[Finding]],
) -> Outcome:
    load, commits = Load(seed), Counter[str]()
    tenant, began = sent.tenant, time.monotonic()
    until = began + 60 * amount
    failed: list[BaseException] = []

    def guarded(work: Work, number: int) -> None:
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
        for number, work in enumerate((_upkeep, _upkeep, _backfill, *more), 1)
    ]
    with with_settings(**batches.ENDLESS_ATTEMPTS, **EAGER):
        _ingest(sent, load)
        for writer in writers:
            writer.start()
        while time.monotonic() < until and not failed:
            _ingest(sent, load)
            commits["batch"] += 1
            report_progress(min(amount, (time.monotonic() - began) / 60))
        for writer in writers:
            writer.join()
        batches.publish_overdue()
    if failed:
        raise AssertionError(f"a writer failed: {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return Outcome([sent], f"{amount:g} minutes", find_differences(), places=commits)


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


def _tenant_table_upkeep(tenant: Tenant, draw: random.Random) -> str:
    need = Need(tenant, None, None, Task.TENANT_TABLES, "chaos", 1)
    (done,) = upkeep(_no_spark, [need], run_id=None, seconds=600)
    problems = [why for why in (done.detail or "").split("; ") if why and not GAVE_WAY.search(why)]
    assert (done.outcome, problems) == ("done", []), f"upkeep of own tables: {done}"
    did = [task for task, number in UPKEEP_COUNTS.items() if done.after[number]]
    return "upkeep of own tables" + (f" that {' and '.join(did)}" if did else "")


def _no_spark() -> SparkSession:
    raise AssertionError("upkeep of own tables takes no Spark")


def _backfill(tenant: Tenant, draw: random.Random) -> str:
    slug, day = draw.choice(tuple(SCHEMAS)), (NOW - timedelta(days=draw.randrange(DAYS))).date()
    with spark.session() as session:
        backfill(session, tenant, slug, day, parallelism=2)
    return "backfill"
