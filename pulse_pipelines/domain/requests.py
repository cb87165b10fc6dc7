"""Limits and choices of request parameters, shared by the HTTP API and the command line."""

from enum import StrEnum

MAX_ROWS = 10_000
"""Maximum rows of a preview."""
SHOWN_SNAPSHOTS = 100
"""Default number of a table's newest snapshots to list."""
MAX_LETTERS = 1_000
"""Maximum dead letters of a page, and of a request by ids."""


class LetterState(StrEnum):
    """States of a dead letter, and ALL for filters."""

    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    LANDED = "landed"
    ERASED = "erased"
    ALL = "all"


class Task(StrEnum):
    """Maintenance tasks of a table, in the order of their execution."""

    WINDOWS = "windows"
    """Build the windows of a dataset's state, where a declaration or a backfill did not come to it."""
    MERGE = "merge"
    """L1: merge the small files of a day."""
    SORT = "sort"
    """L2: rewrite a quiet day as few large files, sorted by timestamp."""
    MANIFESTS = "manifests"
    EXPIRE = "expire"
    ORPHANS = "sweep"
    """Remove orphan files from the table's folder."""
    RAW = "raw"
    """Remove objects that the ledger does not know from a tenant's raw zone."""
    RETENTION = "retention"
    TENANT_TABLES = "own"
    """Expire snapshots and remove orphans of the tables of a tenant's own that ask for it."""


MAX_VERSIONS = 10_000
"""Maximum versions of one page of a log of entities."""
