"""Orphan files: files in a table's folder that no metadata references and that no writer can still commit.

Exactness comes from the order of steps. The folder is listed first, so every listed file was written before
the steps that follow. Then the open batches are read: their files are spared by name, and a batch that
settled meanwhile has its files in the table. Then the table's pointer is moved to identical metadata. That
is a fence: metadata that a paused writer staged on the old one can never become current, it must be staged
again. Only then are the reachable files read. A listed file that is in none of these can never be committed.
All is checked again before each page of deletions. Ages are an additional condition, by the store's clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow.fs as pafs
from pyiceberg.table import Table

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import store_mark
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.reachable_files import ReachableFiles
from pulse_resources import object_store
from pulse_resources.iceberg import table_metadata
from pulse_resources.object_store import Object
from pulse_resources.process.faults import fail_point
from pulse_resources.settings.service_settings import Role
from pulse_resources.store_keys.store_key import StoreKey

PAGE = 1_000
"""Deletions between two reads of the catalog."""


@dataclass(frozen=True)
class Access:
    """How a table that other writers write is read and changed: by a key of its folder, and a role."""

    store: pafs.S3FileSystem
    key: StoreKey
    """The key with which `store` opens the folder."""
    role: Role
    folder: str


@dataclass(frozen=True)
class Removed:
    objects: int
    bytes: int
    table: Table
    """The table at the time of the last deletions."""


def remove(
    tenant: Tenant,
    load: Callable[[], Table],
    objects: Sequence[Object],
    in_flight: Callable[[], frozenset[str]] = frozenset,
    *,
    with_log: bool = True,
    by_log: bool = True,
    by: Access | None = None,
) -> Removed:
    """Remove those of the objects that are orphans.

    Args:
        load: loads the current table.
        objects: listed in its folder before this call, while only batches wrote files for it.
        in_flight: reads the batches that may still settle; names of their files begin with the batch id.
        with_log: whether to keep earlier metadata files that the table's log names.
        by_log: whether to keep the files that these reach, too.
        by: for a table that other writers write; None: one of Pulse's.

    Raises:
        OSError: the object store failed; only orphans were removed.
        Transient: other writers kept committing first; nothing was removed.
        Terminal: Postgres or the object store was restored (see `store_mark`); nothing was removed.
    """
    store_mark.check()
    spared = in_flight()
    store = by.store if by else None
    commit(_Fence(tenant, load, by, with_log))
    reached = partial(ReachableFiles(store, by.folder if by else "").of, by_log=by_log)
    table = load()
    orphans = _orphans(objects, table, reached(table), spared)
    fail_point("upkeep.before_delete")
    count = size = 0
    for start in range(0, len(orphans), PAGE):
        table = load()
        spared |= in_flight()
        victims = _orphans(orphans[start : start + PAGE], table, reached(table), spared)
        object_store.delete((victim.path for victim in victims), by.key if by else None)
        count += len(victims)
        size += sum(victim.bytes for victim in victims)
    return Removed(count, size, table)


def _orphans(
    objects: Sequence[Object], table: Table, reached: frozenset[str], spared: frozenset[str]
) -> list[Object]:
    """The orphans in the table's own folder; the folder of a table deleted meanwhile is left alone."""
    folder = f"{table.location()}/"
    return [
        file
        for file in objects
        if file.path.startswith(folder)
        and file.path not in reached
        and file.name.partition("-")[0] not in spared
    ]


@dataclass
class _Fence(Change[Work]):
    """Moves a table to identical new metadata, so that metadata staged before can never be committed."""

    load: Callable[[], Table]
    by: Access | None
    with_log: bool
    point = "upkeep.fence"

    @property
    def role(self) -> Role:
        return self.by.role if self.by else "pulse_pipeline"

    def stage(self, lost: SwapLost | None) -> Work:
        table, store = self.load(), self.by.store if self.by else None
        old = table.metadata_location
        document = table_metadata.read(old, store)
        new = table_metadata.write_next(document, old, with_log=self.with_log, store=store)
        namespace, name = table.name()
        return Work([Next((namespace, name), old, new)])

    def was_committed(self, work: Work) -> bool:
        return self.load().metadata_location == work.tables[0].new
