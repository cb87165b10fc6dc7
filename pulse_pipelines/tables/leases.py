"""Table leases: writers of one table kept apart, each for as long as its process lives.

Backfill, erasure and maintenance rewrite files of a table, one of them at a time. A lease spares work; what
keeps a commit right is the compare-and-swap (see `commit`), and reading the table again when it is lost.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from pulse_resources import locks
from pulse_resources.errors import Transient
from pulse_resources.locks import Lock


@contextmanager
def rewriting(dataset_id: UUID, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only one that rewrites files of a dataset's table while the block runs.

    Raises:
        Transient: another rewrite did not end within `wait_seconds`.
    """
    with locks.session(Lock.REWRITE, dataset_id, wait_seconds=wait_seconds) as held:
        if not held:
            raise Transient(
                "another rewrite of this table is under way", fix="Try again later", dataset=dataset_id
            )
        yield


@contextmanager
def moving(dataset_id: UUID) -> Iterator[None]:
    """Write files for a table without its lease, beside others that do: no orphan is looked for meanwhile."""
    with locks.session(Lock.MOVE, dataset_id, shared=True, wait_seconds=math.inf):
        yield


@contextmanager
def nobody_moving(dataset_id: UUID) -> Iterator[None]:
    """While the block runs nobody is `moving`; who begins to waits for its end.

    Raises:
        Transient: somebody is.
    """
    with locks.session(Lock.MOVE, dataset_id) as held:
        if not held:
            raise Transient(
                "the dataset is just moving to another schema", fix="Try again later", dataset=dataset_id
            )
        yield
