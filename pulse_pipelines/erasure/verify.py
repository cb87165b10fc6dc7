"""Verification: a second search for the person's events in all stores, whatever the records say.

It scans every data file in the table's folder, reachable or not, and every object in the raw zone. Only
events that the erasure covers count. Dead letters and the raw zone come first: once they are clean, no
backfill can bring an event back into the tables, which are scanned after them.
"""

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestFile

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import curated, history, letters, raw, rows, staged, states
from pulse_pipelines.erasure.own import tables as own_tables
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.maintenance.remove_orphan_files import in_flight
from pulse_pipelines.tables import live_table, raw_zone
from pulse_resources import object_store, postgres
from pulse_resources.iceberg.live_manifests import names_removed
from pulse_resources.settings import load_settings


@dataclass
class Verified:
    """Stores that were scanned, and the places where the person's events remain."""

    searched: dict[str, int] = field(default_factory=dict)
    """Number of dead letters, tables, objects or files that were searched, by store."""
    by_step: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Places by the step of an erasure that removes them."""

    @property
    def leftovers(self) -> list[str]:
        return [place for places in self.by_step.values() for place in places]

    @property
    def clean(self) -> bool:
        return not self.leftovers


def scan(tenant: Tenant, subject: Subject, erasure: Erasure) -> Verified:
    """Scan every store for what the erasure removes; takes about as long as the erasure.

    Raises:
        OSError: the object store failed.
        psycopg.OperationalError: Postgres failed.
    """
    result, bucket = Verified(), load_settings().object_store.bucket
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        dead = letters.search(connection, tenant, subject)
    result.searched["dead letters"] = dead.searched
    _add(result, letters.STEP, [f"dead letter {partition}-{offset}" for partition, offset in dead.hit])
    tables = staged.count_events(tenant, subject)
    result.searched["staging tables"] = len(tables)
    _add(result, staged.STEP, [f"{n} events in staging.{table}" for table, n in tables.items() if n])
    state_events = states.count_remaining(tenant, subject, erasure)
    _add(result, rows.STEP, [f"{state_events} events in the dataset's state"] if state_events else [])
    prefixes = [f"{tenant.raw_prefix(bucket, slug)}/" for slug in raw.slugs(subject)]
    raw_objects = [raw_object.path for prefix in prefixes for raw_object in object_store.listed(prefix)]
    _scan(result, raw.STEP, "raw objects", raw_objects, lambda path: _lines(path, subject))
    if erasure.finished_at is None:  # later commits remove other files
        removed = sum(map(names_removed, _manifests(tenant, subject)))
        _add(result, history.STEP, [f"{removed} manifests that name removed files"] if removed else [])
    # By the erasure's own dataset: another dataset may have the slug by now.
    folder = tenant.table_location(bucket, erasure.slug, erasure.dataset_id)
    _scan(result, rows.STEP, "data files", _data_files(tenant, folder), lambda path: _rows(path, subject))
    summaries = curated.stale_summaries(tenant, erasure)
    _add(result, curated.STEP, [f"summary {rollup} of {day}" for rollup, day in summaries])
    names = list(curated.tables(tenant, subject))
    result.searched["rollups"] = len(names)
    for name in names:
        stale = curated.leftovers(tenant, subject, erasure, name)
        _add(result, curated.STEP, [f"a rollup from before, {path}" for path in stale])
    if own_tables.erased(erasure.steps):
        outcomes = own_tables.search_again(tenant, subject, erasure)
        result.searched["files of own tables"] = sum(outcome.searched for outcome in outcomes)
        _add(
            result,
            own_tables.STEP,
            [f"{outcome.rows} rows in {outcome.table}" for outcome in outcomes if outcome.rows],
        )
        _add(
            result,
            own_tables.STEP,
            [f"unread: {outcome.table}, {outcome.reason}" for outcome in outcomes if outcome.reason],
        )
    return result


def _manifests(tenant: Tenant, subject: Subject) -> list[ManifestFile]:
    table = live_table.current(tenant, subject.dataset)
    snapshot = table.current_snapshot()
    return snapshot.manifests(table.io) if snapshot else []


def _data_files(tenant: Tenant, location: str) -> list[str]:
    spared = in_flight(tenant)
    return [
        file.path
        for file in object_store.listed(location)
        if file.name.endswith(".parquet") and file.name.partition("-")[0] not in spared
    ]


def _add(result: Verified, step: str, places: list[str]) -> None:
    if places:
        result.by_step[step].extend(places)


def _scan(result: Verified, step: str, store: str, paths: list[str], count: Callable[[str], int]) -> None:
    result.searched[store] = len(paths)
    with ThreadPoolExecutor(rows.AT_A_TIME, thread_name_prefix="verify") as pool:
        counted = zip(paths, pool.map(count, paths), strict=True)
        _add(result, step, [f"{events} events in {path}" for path, events in counted if events])


def _rows(path: str, subject: Subject) -> int:
    try:
        return len(rows.search(path, subject))
    except FileNotFoundError:  # upkeep removed it after the listing
        return 0


def _lines(path: str, subject: Subject) -> int:
    try:
        return len(raw.events_of(raw_zone.content(path), subject))
    except FileNotFoundError:
        return 0
