"""`pulse` commands in processes of their own, and a Postgres that makes one wait in the midst."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from psycopg import sql

from chaos.surroundings import PULSE, superuser
from chaos.waiting import PATIENCE_S, wait

BLOCKED = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"


@contextmanager
def command(*arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """A command that runs; its standard input stays open."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([PULSE, *arguments], text=True, **pipes) as running:
        try:
            yield running
        finally:
            running.kill()


def of(stream: "IO[str] | None") -> "IO[str]":
    """A stream of a command, which has all of them."""
    assert stream is not None
    return stream


@contextmanager
def waiting_for(table: str, *arguments: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A command that waits within a query of a table, which is locked; and its backend of Postgres."""
    with superuser() as locking, superuser() as looking, locking.transaction():
        locking.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(table)))
        waiting: list[int] = []

        def blocked() -> bool:
            waiting[:] = [pid for (pid,) in looking.execute(BLOCKED, [locking.info.backend_pid])]
            return bool(waiting)

        with command(*arguments) as running:
            wait(lambda: blocked() or running.poll() is not None, "it does not use the table")
            assert waiting, running.communicate()
            yield running, waiting[0]


def ended(running: "subprocess.Popen[str]", end: Callable[[], object]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, after what ends it."""
    end()
    printed, errors = running.communicate(timeout=PATIENCE_S)
    return running.returncode, printed, errors
