"""Table leases: session advisory locks that keep writers of one table apart while their processes live.

Backfill, erasure and maintenance rewrite files of a table one at a time. A lease only saves wasted work;
correctness comes from the compare-and-swap (see `commit`), and reading the table again after a lost swap.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from pulse_resources.errors import Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock


@contextmanager
def rewriting(owner_id: UUID, *, of: str = "dataset", wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the exclusive lease for rewriting files of a dataset's table while the block runs.

    Args:
        owner_id: the dataset; or the tenant, for the files that are of no dataset.
        of: which of the two, for the error.

    Raises:
        Transient: another rewrite did not end within `wait_seconds`.
    """
    with locks.session(Lock.REWRITE, owner_id, wait_seconds=wait_seconds) as is_locked:
        if not is_locked:
            raise Transient(
                f"another erasure, backfill, move or compaction of this {of} is under way",
                fix="Try again later",
                **{of: owner_id},
            )
        yield


@contextmanager
def moving(dataset_id: UUID) -> Iterator[None]:
    """Hold a shared lock while writing a table's files without its lease: it excludes `nobody_moving`."""
    with locks.session(Lock.MOVE, dataset_id, shared=True, wait_seconds=math.inf):
        yield


@contextmanager
def nobody_moving(dataset_id: UUID) -> Iterator[None]:
    """Exclude `moving` while the block runs: a process that enters it waits for the block's end.

    Raises:
        Transient: another process is `moving`.
    """
    with locks.session(Lock.MOVE, dataset_id) as is_locked:
        if not is_locked:
            raise Transient(
                "the dataset is being moved to another schema", fix="Try again later", dataset=dataset_id
            )
        yield
