"""Spark's Python daemon, whose workers start with all imports that a batch's tasks need.

Spark puts archives of pyspark's sources first on the path, which each daemon would compile again: 1.3 to 2.5
seconds of a core. Where pyspark is installed beside them, as on one machine, its compiled modules are used.

Spark forks a Python worker per core from its daemon, and again after a minute without a task. Pyspark's own
daemon has imported only pyspark, so each worker spends two seconds of its core on imports.

Before each task a worker looks for changes where it imports modules from. Of an archive Python then reads the
whole directory, once per package, and pyspark comes as an archive of 1,300 files: that took more processor
time than the tasks of a small batch. Archives here do not change.

After each task a worker collects garbage, and so visits every object that it has: 170,000 from imports, in
40 ms. These are frozen before workers are forked; visiting them was two thirds of a small batch's work here.

Spark starts a daemon per session and ends none before it ends itself, and one with imports takes 200 MB.
So a daemon without workers exits; Spark starts another when it needs a worker. And daemons are forks of one
process that has the imports (`spark_template`), where the system has what that needs.
"""

import gc
import os
import signal
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from zipimport import zipimporter

from typing_extensions import override

from pulse_pipelines.runtime import spark_template
from pulse_resources import spark_code

PRELOADED = ("backfill.rebuild", "curated.day_tasks", "ingest.drain", "ingest.land")
"""Modules of Pulse whose imports are all that tasks need."""
CHECK_INTERVAL_S = 30.0
IDLE_LOOKS = 4
"""Spark must have noticed, too: it forgets idle workers after a minute, and until then asks for them."""


def installed_instead_of_archives(path: list[str]) -> list[str]:
    """The path without archives that the installed pyspark contains; all of it if none is installed."""
    folders = [place for place in path if not place.endswith(".zip")]
    installed = PathFinder.find_spec("pyspark", folders)
    if installed is None or installed.origin is None:
        return path
    package = Path(installed.origin).parent.resolve()
    return [place for place in path if place in folders or package not in Path(place).resolve().parents]


class _Idle:
    """Timer signal handler: ends the process after `IDLE_LOOKS` calls without workers."""

    looks = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            os.waitpid(-1, os.WNOHANG)
            self.looks = 0
        except ChildProcessError:
            self.looks += 1
        if self.looks == IDLE_LOOKS:
            os._exit(0)


class _Archive(zipimporter):
    """Importer for an archive that is never written again: Pulse's own is named by its content."""

    @override
    def invalidate_caches(self) -> None:
        """Keep the directory that was read."""


def read_archives_once() -> None:
    """Import from archives without reading their directories again."""
    sys.path_hooks[:] = [_Archive if hook is zipimporter else hook for hook in sys.path_hooks]
    for place, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[place]


def prefer_code_of_sessions() -> None:
    """Let workers import Pulse from the archive of a session with another version.

    Spark starts a daemon per session, so no worker has tasks of two versions.
    """
    from pyspark import worker_util

    add_path = worker_util.add_path
    spark_code.digest()  # once, before workers are forked

    def add_path_and_forget(path: str) -> None:
        if path not in sys.path and spark_code.is_file_of_another(Path(path).name):
            for name in [name for name in sys.modules if name.partition(".")[0] in spark_code.PACKAGES]:
                del sys.modules[name]
        add_path(path)

    worker_util.add_path = add_path_and_forget


def load() -> None:
    """Import what tasks need, and keep workers' garbage collection from visiting it."""
    read_archives_once()
    prefer_code_of_sessions()
    for name in PRELOADED:
        import_module(f"pulse_pipelines.{name}")
    import_module("pyspark.daemon")
    gc.collect()
    gc.freeze()


def fork_workers() -> None:
    """Fork workers until none has been requested for a while."""
    from pyspark import daemon

    signal.signal(signal.SIGALRM, _Idle())
    signal.setitimer(signal.ITIMER_REAL, CHECK_INTERVAL_S, CHECK_INTERVAL_S)  # workers do not inherit it
    daemon.manager()  # type: ignore[no-untyped-call]


def main() -> None:
    """Become the daemon, or wait while a fork of the server's template is the daemon."""
    sys.path[:] = installed_instead_of_archives(sys.path)  # before the first import of pyspark
    if not spark_template.serve_by_fork(load, fork_workers):
        load()
        fork_workers()


if __name__ == "__main__":
    main()
