"""Orphan files: what lies in a table's folder, and nobody reaches or can still make part of the table.

The order is what makes it exact. The folder is listed first, so whatever is in the list was written before
everything that follows. Then the batches in flight are read: their files are spared by name, and a batch
that settled meanwhile has its files in the table. Then the table's pointer is moved by one. That is a fence:
metadata that a paused writer staged on the old one can never become current, it has to be staged anew. Only
then is it read what the table reaches. A listed file that is in none of these can never come back. Before
each page of deletions all of it is looked at again. Ages count only in addition, by the store's own clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.table import Table

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.commit import Next, SwapLost, Work, commit
from pulse_pipelines.tables.reachable_files import ReachableFiles
from pulse_resources import object_store, table_metadata
from pulse_resources.faults import fail_point
from pulse_resources.object_store import Object

PAGE = 1_000
"""Deletions between two looks at the catalog."""


@dataclass(frozen=True)
class Removed:
    objects: int
    bytes: int
    table: Table
    """As it was when the last of them were."""


def remove(
    tenant: Tenant,
    look: Callable[[], Table],
    found: Sequence[Object],
    in_flight: Callable[[], frozenset[str]] = frozenset,
    *,
    with_log: bool = True,
    by_log: bool = True,
) -> Removed:
    """Remove those of the objects found that are orphans.

    Args:
        look: gives the table as it is now.
        found: listed in its folder before this call, while nobody wrote files for it beside its batches.
        in_flight: gives batches that may still settle, whose files begin with their name.
        with_log: earlier metadata files stay, as far as the table's log names them.
        by_log: what they reach stays, too.

    Raises:
        OSError: the object store failed; what was removed were orphans.
        Transient: other writers kept committing first; nothing was removed.
    """
    spared = in_flight()
    _fence(tenant, look, with_log=with_log)
    reached = partial(ReachableFiles().of, by_log=by_log)
    table = look()
    orphans = _orphans(found, table, reached(table), spared)
    fail_point("upkeep.before_delete")
    count = size = 0
    for start in range(0, len(orphans), PAGE):
        table = look()
        spared |= in_flight()
        victims = _orphans(orphans[start : start + PAGE], table, reached(table), spared)
        object_store.delete(each.path for each in victims)
        count += len(victims)
        size += sum(each.bytes for each in victims)
    return Removed(count, size, table)


def _orphans(
    found: Sequence[Object], table: Table, reached: frozenset[str], spared: frozenset[str]
) -> list[Object]:
    """Those of the table's own folder: the folder of one that was deleted meanwhile stays as it is."""
    folder = f"{table.location()}/"
    return [
        each
        for each in found
        if each.path.startswith(folder)
        and each.path not in reached
        and each.name.partition("-")[0] not in spared
    ]


def _fence(tenant: Tenant, look: Callable[[], Table], *, with_log: bool) -> None:
    """Move the table to metadata that says the same: what was staged before can never be committed."""

    def stage(lost: SwapLost | None) -> Work:
        table = look()
        document = table_metadata.read(table.metadata_location)
        new = table_metadata.write_next(document, table.metadata_location, with_log=with_log)
        namespace, name = table.name()
        return Work([Next((namespace, name), table.metadata_location, new)])

    commit(tenant, stage, lambda work: look().metadata_location == work.tables[0].new, point="upkeep.fence")
