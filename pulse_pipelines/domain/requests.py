"""What a request may ask for: bounds and choices that the front doors name before anything is looked at."""

from enum import StrEnum

MAX_ROWS = 10_000
"""Of one preview."""
SHOWN_SNAPSHOTS = 100
"""Of a table, the newest, where no number is asked for."""
MAX_LETTERS = 1_000
"""Of one page of dead letters, and of one request that names them."""


class State(StrEnum):
    """What became of a dead letter."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    LANDED = "landed"
    ERASED = "erased"
    ALL = "all"


class Task(StrEnum):
    """What upkeep does to a table, in the order in which it does it."""

    MERGE = "merge"
    """L1: the small files of a day become few."""
    SORT = "sort"
    """L2: a quiet day becomes few large files, sorted by timestamp."""
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    SWEEP = "sweep"
    """Remove what nothing reaches any more from the table's folder."""
    RAW = "raw"
    """Remove what no ledger knows from a tenant's raw zone."""
    RETENTION = "retention"


MAX_VERSIONS = 10_000
"""In one page of a log of entities."""
