"""Verify: look for the person's events everywhere again: in what the stores hold, not what the records say.

Data files are those that lie in the table's folder, whether anything reaches them or not; raw objects are
those that lie in the raw zone. Only events that the erasure covers count.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import curated, letters, raw, rows
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.run import of_value
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.lake.upkeep import objects
from pulse_pipelines.lake.upkeep.sweep import in_flight
from pulse_pipelines.stages import raw as raw_zone
from pulse_pipelines.stages import rewrite
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import TableName
from pulse_resources.settings import load_settings

# A summary of an erased day that was computed before the erasure.
SUMMARIES = """
SELECT s.rollup, s.day FROM summaries s JOIN landings l USING (tenant_id, dataset_id, day)
WHERE l.batch_id = %s AND l.tenant_id = %s AND s.landed_at < l.landed_at ORDER BY 1, 2
"""


@dataclass
class Verified:
    """What was looked at, and where the person's events still are."""

    looked_at: dict[str, int] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.leftovers


def verify(tenant: Tenant, erasure_id: str, where: str) -> Verified:
    """Scan every store for what an erasure removed; it takes about as long as the erasure.

    Raises:
        NotFound: there is no such erasure.
        UserError: it was made with another field or value.
        OSError: the object store failed.
    """
    erasure, subject = of_value(tenant, erasure_id, where)
    found = Verified()
    table = rewrite.current(tenant, subject.dataset)
    snapshots = [s.snapshot_id for s in table.metadata.snapshots]
    found.looked_at["snapshots"] = len(snapshots)
    _scan(found, "data files", _data_files(tenant, table.location()), lambda path: _rows(path, subject))
    bucket = load_settings().object_store.bucket
    prefixes = [f"{tenant.raw_prefix(bucket, slug)}/" for slug in raw.slugs(subject)]
    raw_objects = [each.path for prefix in prefixes for each in objects.listed(prefix)]
    _scan(found, "raw objects", raw_objects, lambda path: _lines(path, subject))
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        dead = letters.search(connection, tenant, subject)
        found.leftovers += [f"dead letter {partition}-{offset}" for partition, offset in dead.hit]
        stale = connection.execute(SUMMARIES, [erasure.erasure_id, tenant.tenant_id]).fetchall()
        found.leftovers += [f"summary {rollup} of {day}" for rollup, day in stale]
    for name in curated.tables(tenant, subject):
        found.leftovers += _curated(tenant, subject, erasure, name)
    return found


def _curated(tenant: Tenant, subject: Subject, erasure: Erasure, name: TableName) -> list[str]:
    """Files of a curated table that were computed from what was erased."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        table = iceberg.load_table(name, iceberg.current_location(connection, name))
        left = [file.file_path for file in curated.stale_files(connection, subject, erasure, table)]
    live = rewrite.live_files(table)
    for each in objects.listed(table.location()):
        old = erasure.finished_at is None or each.modified <= erasure.finished_at
        if old and each.name.endswith(".parquet") and each.path not in live:
            left.append(each.path)
    return [f"a rollup from before, {path}" for path in left]


def _data_files(tenant: Tenant, location: str) -> list[str]:
    spared = in_flight(tenant)
    return [
        each.path
        for each in objects.listed(location)
        if each.name.endswith(".parquet") and each.name.partition("-")[0] not in spared
    ]


def _scan(found: Verified, what: str, paths: list[str], look: Callable[[str], int]) -> None:
    found.looked_at[what] = len(paths)
    with ThreadPoolExecutor(rows.AT_A_TIME, thread_name_prefix="verify") as pool:
        for path, events in zip(paths, pool.map(look, paths), strict=True):
            if events:
                found.leftovers.append(f"{events} events in {path}")


def _rows(path: str, subject: Subject) -> int:
    try:
        return len(rows.search(path, subject))
    except FileNotFoundError:  # upkeep removed it since it was listed
        return 0


def _lines(path: str, subject: Subject) -> int:
    try:
        return len(raw.events_of(raw_zone.content(path), subject))
    except FileNotFoundError:
        return 0
