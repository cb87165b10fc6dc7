"""Upkeep of tables of a tenant's own: all are checked, those whose property `pulse.upkeep` is `true` tidied.

The check: every file that a snapshot names is in the tenant's folder. Then snapshots expire, by Iceberg's
own properties of the table where it has them, orphans go, and small files are merged (`merge_own`). All of
it reads what the tenant's engines wrote, so it is done by a key of the table's folder alone, and in a
process whose memory and time are limited: files that are made to exhaust it end that tenant's upkeep only.
Tables take turns (`table_turns`), and so do tenants: each has its share of what is left of the run.
Merging decodes data, so it comes last, and the process says before it what it has found. A table whose
files cannot be read, or are spelled in a way that cannot be compared, is left as it is.

An engine writes its files before it asks the catalog to commit them, and Pulse does not know it meanwhile:
so only orphans of more than `upkeep.own_orphan_hours` are removed.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import orjson
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, purges, table_state
from pulse_pipelines.lake.catalog import ROLE, OwnTable
from pulse_pipelines.lake.table_state import NotRewritten
from pulse_pipelines.maintenance import merge_own, state, table_turns
from pulse_pipelines.maintenance.expire_snapshots import beyond
from pulse_pipelines.maintenance.history import Done, Skipped
from pulse_pipelines.sql.confinement import last_words, limit_memory
from pulse_pipelines.tables import leases, orphan_files
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.reachable_files import Outside, ReachableFiles
from pulse_resources import object_store
from pulse_resources.errors import Terminal, Transient, printable
from pulse_resources.iceberg import table_metadata
from pulse_resources.settings import UpkeepSettings, load_settings

ASKS = "pulse.upkeep"
"""Table property by which a tenant asks for upkeep."""
MERGES = "pulse.upkeep.merge"
"""Table property by which it asks for upkeep without merges: `false`."""
MAX_AGE, MIN_SNAPSHOTS = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
MEMORY = 1024**3
"""Limit of the process, beyond what it has when it begins."""
SECONDS, LEAST_SECONDS = 600.0, 60.0
"""Time of a tenant, at most and at least."""
PURGE, TIDY, MERGE, ALL = 0.05, 0.45, 0.35, 0.9
"""Parts of this time, the first one twice; the process ends by itself before it is killed."""
_HOUR_MS = 3_600_000


def keep(tenant: Tenant, done: Done, seconds: float) -> None:
    """Maintain the own tables of a tenant, in a process of its own.

    Args:
        seconds: the tenant's share of the time of a run.

    Raises:
        Terminal: a table names files outside of the tenant's folder; or the process failed, or exceeded its
            limits. What it committed stands.
        Skipped: an erasure, which searches these tables, is under way.
    """
    try:
        with leases.rewriting(tenant.tenant_id, of="tenant"):
            _keep(tenant, done, min(SECONDS, max(LEAST_SECONDS, seconds)))
    except Transient as error:
        raise Skipped(error.message, fix=error.fix, **error.where) from None


def _keep(tenant: Tenant, done: Done, seconds: float) -> None:
    command = [sys.executable, "-m", __name__, str(tenant.tenant_id), tenant.slug, str(seconds)]
    failed: str | None = None
    try:
        ended = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        output = ended.stdout
        if ended.returncode:
            why = last_words(ended.stderr)
            failed = f"upkeep of own tables ended with {ended.returncode}: {why[:500]}"
    except subprocess.TimeoutExpired as error:
        output, failed = error.stdout or b"", f"upkeep of own tables took more than {seconds:.0f} s"
    outcome = _last_report(output)
    done.after = outcome["numbers"]
    if outside := printable("; ".join(outcome["outside"])[:1_500]):
        raise Terminal(
            f"own tables name files outside of their tenant's folder: {outside}",
            fix="No key of theirs opens these files; ask the tenant what wrote the tables",
            tenant=tenant.slug,
        )
    if failed:
        raise Terminal(failed, tenant=tenant.slug, table=printable(str(outcome["at"])))
    done.detail = printable("; ".join(outcome["skipped"])[:2_000]) or None


def _last_report(output: bytes) -> dict[str, Any]:
    """The report that the process printed line by line; a later line replaces members of earlier ones."""
    whole, _, _ = output.rpartition(b"\n")
    outcome: dict[str, Any] = {"numbers": {}, "skipped": [], "outside": [], "at": None}
    for line in whole.splitlines():
        outcome |= orjson.loads(line)
    return outcome


def main(tenant: Tenant, seconds: float) -> None:
    """Look after a tenant's own tables in this process, with limits; prints what was done as JSON."""
    limit_memory(MEMORY)
    keeper = Keeper(tenant, _tell, seconds)
    for part in (keeper.tidy, keeper.merge, keeper.purge):
        _tell(asdict(part()))


def _tell(outcome: Mapping[str, object]) -> None:
    print(orjson.dumps(outcome).decode(), flush=True)


@dataclass(frozen=True)
class UpkeepReport:
    """Results of upkeep of a tenant's own tables."""

    numbers: dict[str, int]
    """Counts by name: `tables` checked, those that `asked` for upkeep; `snapshots` expired, `objects` and
    `folders` removed; data files `merged`, and the files that they were `merged_into`."""
    skipped: list[str]
    """Tables that were left as they are, and why."""
    outside: list[str]
    """Tables with files outside of the tenant's folder, each with one of these."""


class Keeper:
    """Upkeep of the own tables of one tenant.

    Args:
        tell: called with the table that is looked at, and with each finding of files outside, as they come.
        seconds: for all tables.
    """

    def __init__(
        self,
        tenant: Tenant,
        tell: Callable[[Mapping[str, object]], None] = lambda report: None,
        seconds: float = SECONDS,
    ) -> None:
        self._tenant, self._tell = tenant, tell
        self._seconds, self._began = seconds, time.monotonic()
        self._settings = load_settings().upkeep
        self._min_age = timedelta(hours=self._settings.own_orphan_hours)
        self._numbers = Counter({"tables": 0, "asked": 0, "snapshots": 0, "objects": 0})
        self._skipped, self._outside = list[str](), list[str]()
        self._merging: list[OwnTable] = []
        """Tables that asked for upkeep, had it, and are merged."""

    def keep(self) -> UpkeepReport:
        """All of it. Raises as `tidy`."""
        self.tidy()
        self.merge()
        return self.purge()

    def tidy(self) -> UpkeepReport:
        """Finish removals of folders, check all tables, and expire and clean those that ask for it.

        Raises:
            OSError: the object store failed.
            Transient: it issues no key.
        """
        numbers = self._numbers
        seconds = self._seconds * PURGE
        numbers["folders"] = purges.finish(self._tenant, seconds)
        numbers["folders"] += purges.remove_abandoned(self._tenant, self._min_age, seconds)
        tables = catalog.tenant_tables(self._tenant)
        for table, longest in table_turns.take_turns(tables, self._tidy, self._seconds * TIDY):
            self._skipped.append(f"{table.shown}: {_unfinished(longest)}")
        numbers["tables"] = len(tables)
        return self._report()

    def _tidy(self, table: OwnTable) -> None:
        """Check a table, expire its snapshots and remove its orphans; continues an unfinished turn."""
        self._tell({"at": table.shown, "outside": self._outside})
        try:
            if (stray := self._stray(table)) is not None:
                self._outside.append(f"{table.shown}: {stray[:200]}")
                return
            document = table_state.read_state(self._tenant, table).document
            if table_state.property_of(document, ASKS) == "true":
                self._numbers["snapshots"] += self._expire(table)
                self._numbers["objects"] += self._remove_orphans(table)
                self._numbers["asked"] += 1
                if table_state.property_of(document, MERGES) != "false":
                    self._merging.append(table)
        except Outside as error:
            self._outside.append(f"{table.shown}: {error}")
        except (*table_state.UNREADABLE, *table_state.EXHAUSTED) as error:
            self._skipped.append(f"{table.shown}: {type(error).__name__}: {str(error)[:200]}")

    def merge(self) -> UpkeepReport:
        """Merge small files of the tables that were tidied, in any order: none is always the last one."""
        self._numbers.update(merged=0, merged_into=0)
        seconds = self._seconds * MERGE
        merge = partial(self._merge, budget=merge_own.Budget(until=time.monotonic() + seconds))
        for table, longest in table_turns.take_turns(self._merging, merge, seconds):
            self._skipped.append(f"{table.shown}: not merged: {_unfinished(longest)}")
        return self._report()

    def purge(self) -> UpkeepReport:
        """Continue removals of large folders for the rest of the time."""
        seconds = self._began + self._seconds * ALL - time.monotonic()
        self._numbers["folders"] += purges.finish(self._tenant, seconds)
        return self._report()

    def _merge(self, table: OwnTable, budget: merge_own.Budget) -> None:
        self._tell({"at": table.shown})
        try:
            done = merge_own.merge(self._tenant, table, budget)
            self._numbers.update(merged=done.files, merged_into=done.into)
            skipped = [f"{count} files not merged: {why}" for why, count in done.skipped.items()]
        except NotRewritten as error:
            skipped = [f"not merged: {error.message}"]
        except merge_own.UNREADABLE as error:
            skipped = [f"not merged: {type(error).__name__}: {str(error)[:200]}"]
        self._skipped.extend(f"{table.shown}: {why}" for why in skipped)

    def _report(self) -> UpkeepReport:
        return UpkeepReport(dict(self._numbers), self._skipped, self._outside)

    def _stray(self, table: OwnTable) -> str | None:
        """A file outside of the tenant's folder that a snapshot of the table names."""
        folder = f"{metadata.folder(self._tenant)}/"
        current = table_state.read_state(self._tenant, table)
        reached = ReachableFiles(current.store.store, table.location).of(current.table, by_log=False)
        return min((path for path in reached if not path.startswith(folder)), default=None)

    def _expire(self, table: OwnTable) -> int:
        expiry = _OwnExpiry(self._tenant, table, self._settings, state.database_time())
        commit(expiry)
        return len(expiry.expired)

    def _remove_orphans(self, table: OwnTable) -> int:
        by = table_state.access(table)
        objects = object_store.aged(table.location, self._min_age)
        if not objects:
            return 0

        def current() -> Table:
            return table_state.read_state(self._tenant, table).table

        # Files of earlier metadata are removed, too: the table's properties set the history to keep.
        return orphan_files.remove(self._tenant, current, objects, by_log=False, by=by).objects


def _unfinished(longest: float) -> str:
    return f"it takes more than {longest:.0f} s" if longest else "the time was over before its turn"


@dataclass
class _OwnExpiry(Change[Work]):
    """Drops the snapshots of a table that are beyond the history to keep."""

    table: OwnTable
    settings: UpkeepSettings
    now: datetime
    expired: set[int] = field(default_factory=set)
    point = "own.expire"
    role = ROLE

    def stage(self, lost: SwapLost | None) -> Work | None:
        current = table_state.read_state(self.tenant, self.table)
        self.expired = beyond(current.metadata, self.now, wishes(current.metadata, self.settings))
        if not self.expired:
            return None
        old = current.table.metadata_location
        following = table_metadata.without_snapshots(current.document, self.expired)
        new = table_metadata.write_next(following, old, store=current.store.store)
        return Work([Next(self.table.row, old, new)])

    def was_committed(self, work: Work) -> bool:
        current = table_state.read_state(self.tenant, self.table)
        return not self.expired & {snapshot.snapshot_id for snapshot in current.metadata.snapshots}


def wishes(metadata: TableMetadata, settings: UpkeepSettings) -> UpkeepSettings:
    """The history to keep: by Iceberg's properties of the table, otherwise as of datasets."""
    properties = metadata.properties
    changed: dict[str, float] = {}
    if MAX_AGE in properties:
        changed["history_hours"] = max(0, int(properties[MAX_AGE])) / _HOUR_MS
        changed["history_snapshots"] = sys.maxsize
    if MIN_SNAPSHOTS in properties:
        changed["history_minimum"] = max(1, int(properties[MIN_SNAPSHOTS]))
    return settings.model_copy(update=changed)


if __name__ == "__main__":
    main(Tenant(UUID(sys.argv[1]), sys.argv[2]), float(sys.argv[3]))
