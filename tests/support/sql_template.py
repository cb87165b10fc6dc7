"""The template of query processes with layers of the sandbox switched off, for tests that attack the others.

Runs as `python sql_template.py <layers, with commas between them> <confinement>`.
"""

import sys
from dataclasses import replace

from pulse_pipelines.sql import confinement, engine, template
from pulse_pipelines.sql.gate import Gate, Query


def let_everything_in(_: Gate, sql: str) -> Query:
    return Query(sql, explain=False, tables=frozenset(), maybe=frozenset())


def lock_nothing(database, store, views, *, memory_bytes, threads, seconds):  # type: ignore[no-untyped-def]
    database.execute(f"SET GLOBAL threads = {threads}")
    database.execute(f"SET GLOBAL memory_limit = '{memory_bytes}B'")
    for number, view in enumerate(views):
        database.execute(engine.secret(f"table_{number}", store, replace(view, folder="s3://")))
    return {}


def without(layers: list[str]) -> None:
    if "gate" in layers:
        Gate.check = let_everything_in  # type: ignore[method-assign]
    if "locks" in layers:
        engine.lock = lock_nothing
    if "limits" in layers:
        confinement.limit_resources = lambda _: None


if __name__ == "__main__":
    off = sys.argv.pop(1).split(",")
    without(off)
    template.main()
