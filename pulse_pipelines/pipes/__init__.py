"""Pipes: tables of other Postgres databases, brought into datasets of entities by syncs.

A pipe is defined here (`registry`), launched by a sensor, and run by `run`, which imports what works with
Spark: whoever defines one need not.
"""

from pulse_pipelines.pipes.registry import (
    Pipe,
    ask,
    create,
    delete,
    due,
    failed,
    find,
    fingerprint,
    list_pipes,
    names,
    pause,
    reset,
)

__all__ = [
    "Pipe",
    "ask",
    "create",
    "delete",
    "due",
    "failed",
    "find",
    "fingerprint",
    "list_pipes",
    "names",
    "pause",
    "reset",
]
