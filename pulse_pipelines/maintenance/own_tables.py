"""Upkeep of tables of a tenant's own: all are checked, those whose property `pulse.upkeep` is `true` tidied.

The check: every file that a snapshot names is in the tenant's folder. Then snapshots expire, by Iceberg's own
properties of the table where it has them, and orphans go. All of it reads what the tenant's engines wrote, so
it is done by a key of the table's folder alone, and in a process whose memory and time are limited: files
that are made to exhaust it end that tenant's upkeep only. A table whose files cannot be read, or are spelled
in a way that cannot be compared, is left as it is.

An engine writes its files before it asks the catalog to commit them, and Pulse does not know it meanwhile: so
only orphans of more than `upkeep.own_orphan_hours` are removed.
"""

import resource
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

import orjson
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, paths, purges, updates
from pulse_pipelines.lake.catalog import ROLE, OwnTable
from pulse_pipelines.maintenance import state
from pulse_pipelines.maintenance.expire_snapshots import beyond
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.sql.confinement import data_bytes
from pulse_pipelines.tables import orphan_files
from pulse_pipelines.tables.commit import Next, SwapLost, Work, commit
from pulse_pipelines.tables.orphan_files import Access
from pulse_pipelines.tables.reachable_files import Outside, ReachableFiles
from pulse_resources import iceberg, object_store, table_metadata, vended
from pulse_resources.errors import PulseError, Terminal
from pulse_resources.file_io import file_io_of
from pulse_resources.settings import UpkeepSettings, load_settings
from pulse_resources.vended import Mode

ASKS = "pulse.upkeep"
"""Table property by which a tenant asks for upkeep."""
MAX_AGE, MIN_KEPT = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
MEMORY, SECONDS = 1024**3, 600
"""Limits of the process, beyond what it has when it begins."""
_UNREADABLE = (*updates.WRONG, PulseError, FileNotFoundError, OverflowError, EOFError, AssertionError)
_HOUR_MS = 3_600_000


def keep(tenant: Tenant, done: Done) -> None:
    """Look after the own tables of a tenant, in a process of its own.

    Raises:
        Terminal: a table names files outside of the tenant's folder; or the process failed, or exceeded its
            limits. What it committed stands.
    """
    command = [sys.executable, "-m", __name__, str(tenant.tenant_id), tenant.slug]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Terminal(f"upkeep of own tables took more than {SECONDS} s", tenant=tenant.slug) from None
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1][:500] if said else "it said nothing"
        raise Terminal(f"upkeep of own tables ended with {ended.returncode}: {why}", tenant=tenant.slug)
    found = orjson.loads(ended.stdout.splitlines()[-1])
    done.after = found["numbers"]
    if found["outside"]:
        raise Terminal(
            f"own tables name files outside of their tenant's folder: {'; '.join(found['outside'])[:1_500]}",
            fix="No key of theirs opens these files; ask the tenant what wrote the tables",
            tenant=tenant.slug,
        )
    done.detail = "; ".join(found["left"])[:2_000] or None


def main(tenant: Tenant) -> None:
    """Look after a tenant's own tables in this process, with limits; prints what was done as JSON."""
    most = data_bytes() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    kept = Keeper(tenant).keep()
    print(orjson.dumps(asdict(kept)).decode())


@dataclass(frozen=True)
class Kept:
    """What upkeep did with a tenant's own tables."""

    numbers: dict[str, int]
    """Of tables checked, and those that asked for it; of snapshots expired, objects and folders removed."""
    left: list[str]
    """Tables that were left as they are, and why."""
    outside: list[str]
    """Tables with files outside of the tenant's folder, each with one of these."""


class Keeper:
    """Upkeep of the own tables of one tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._settings = load_settings().upkeep
        self._min_age = timedelta(hours=self._settings.own_orphan_hours)

    def keep(self) -> Kept:
        """Finish removals of folders, check all tables, and tidy those that ask for it.

        Raises:
            OSError: the object store failed.
            Transient: it issues no key.
        """
        numbers = Counter({"tables": 0, "asked": 0, "snapshots": 0, "objects": 0})
        numbers["folders"] = purges.finish(self._tenant)
        numbers["folders"] += purges.remove_abandoned(self._tenant, self._min_age)
        left, outside = [], []
        for own in catalog.own_tables(self._tenant):
            try:
                numbers["tables"] += 1
                if (stray := self._stray(own)) is not None:
                    outside.append(f"{own.shown}: {stray[:200]}")
                elif self._asks(own):
                    numbers["asked"] += 1
                    numbers["snapshots"] += self._expire(own)
                    numbers["objects"] += self._sweep(own)
            except Outside as error:
                outside.append(f"{own.shown}: {error}")
            except _UNREADABLE as error:
                left.append(f"{own.shown}: {type(error).__name__}: {str(error)[:200]}")
        return Kept(dict(numbers), left, outside)

    def _stray(self, own: OwnTable) -> str | None:
        """A file outside of the tenant's folder that a snapshot of the table names."""
        folder = f"{metadata.folder(self._tenant)}/"
        reached = ReachableFiles(self._access(own).store, own.location).of(self._look(own), by_log=False)
        return min((path for path in reached if not path.startswith(folder)), default=None)

    def _asks(self, own: OwnTable) -> bool:
        document = orjson.loads(metadata.read(self._tenant, own.at).content)
        return str((document.get("properties") or {}).get(ASKS)).lower() == "true"

    def _look(self, own: OwnTable) -> Table:
        """The table as it is now, if it still is in the folder that the catalog gave it."""
        at = catalog.location(self._tenant, own.namespace, own.name)
        store = self._access(own).store
        document = table_metadata.read(at, store)
        if table_metadata.folder(at) != own.location or document["location"] != own.location:
            raise Terminal("the table is in another folder")
        paths.check(self._tenant, document)
        table = TableMetadataUtil.parse_obj(document)
        return Table(own.row, table, at, file_io_of(lambda: store), NoopCatalog(iceberg.CATALOG))

    def _access(self, own: OwnTable) -> Access:
        return Access(metadata.client(vended.credentials([own.location], Mode.WRITE)), ROLE, own.location)

    def _expire(self, own: OwnTable) -> int:
        now, gone = state.database_time(), set[int]()

        def stage(lost: SwapLost | None) -> Work | None:
            nonlocal gone
            table, store = self._look(own), self._access(own).store
            gone = beyond(table.metadata, now, wishes(table.metadata, self._settings))
            if not gone:
                return None
            at = table.metadata_location
            following = table_metadata.without_snapshots(table_metadata.read(at, store), gone)
            return Work([Next(own.row, at, table_metadata.write_next(following, at, store=store))])

        def expired(work: Work) -> bool:
            return not gone & {snapshot.snapshot_id for snapshot in self._look(own).metadata.snapshots}

        commit(self._tenant, stage, expired, role=ROLE, point="own.expire")
        return len(gone)

    def _sweep(self, own: OwnTable) -> int:
        by = self._access(own)
        found = object_store.aged(own.location, self._min_age)
        if not found:
            return 0
        # What earlier metadata files reach is not kept: the tenant said how much of the history it wants.
        look = partial(self._look, own)
        return orphan_files.remove(self._tenant, look, found, by_log=False, by=by).objects


def wishes(metadata: TableMetadata, settings: UpkeepSettings) -> UpkeepSettings:
    """The history to keep: by Iceberg's properties of the table, otherwise as of datasets."""
    given = metadata.properties
    changed: dict[str, float] = {}
    if MAX_AGE in given:
        changed["history_hours"] = max(0, int(given[MAX_AGE])) / _HOUR_MS
        changed["history_snapshots"] = sys.maxsize
    if MIN_KEPT in given:
        changed["history_minimum"] = max(1, int(given[MIN_KEPT]))
    return settings.model_copy(update=changed)


if __name__ == "__main__":
    main(Tenant(UUID(sys.argv[1]), sys.argv[2]))
