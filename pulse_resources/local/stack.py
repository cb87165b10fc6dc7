"""Logic of `pulse up` and `pulse down`; the command line displays it."""

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Protocol

from pulse_resources.errors import Transient
from pulse_resources.home import code_server_socket
from pulse_resources.local import dagster, provision, services, state
from pulse_resources.local.downloads import Download
from pulse_resources.local.layout import Layout
from pulse_resources.local.processes import MARK
from pulse_resources.local.service import python
from pulse_resources.local.supervisor import end_unowned
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings
from pulse_resources.settings.setting_faults import check_environment

_TICK = 0.1
_LEFTOVER_SECONDS = 20.0


class Progress(Protocol):
    """Receives progress before the services start."""

    def step(self, title: str, detail: str = "") -> None:
        """Report a step under way; called often, with the newest detail."""

    def done(self, line: str) -> None:
        """Report something finished."""


def start(
    layout: Layout,
    names: tuple[str, ...],
    progress: Progress,
    definitions: str = dagster.MODULE,
    *,
    with_tls: bool = False,
) -> bool:
    """Start a supervisor that runs the services with these names; False if one runs them already.

    Returns as soon as the supervisor works; `watch` waits for the services.

    Args:
        with_tls: Postgres, Kafka and MinIO, which are new, use TLS, now and later.

    Raises:
        UserError: something that the user must install or change.
        Transient: a download failed.
    """
    check_environment()
    if with_tls:
        provision.check_tls(layout)
    layout.make()
    while (lock := _lock(layout)) is None:
        recorded = state.read(layout)
        if recorded and recorded.supervised and not recorded.stopping:
            if set(names) <= set(recorded.services):
                return False
            _fetch(names, progress)
            with layout.requested_file.open("a") as file:  # never truncated: concurrent requests both count
                file.write(",".join(names) + "\n")
            os.kill(recorded.supervisor.pid, signal.SIGHUP)
            return True
        progress.step("Waiting for another `pulse up` or `pulse down` to finish")
        time.sleep(_TICK)
    try:
        _fetch(names, progress)
        _clear_leftovers(layout, progress)
        provision.provision(layout, with_tls=with_tls)
        fail_point("stack.after_provision")
        layout.stack_file.unlink(missing_ok=True)
        layout.requested_file.unlink(missing_ok=True)
        _launch(layout, names, definitions, lock)
    finally:
        os.close(lock)  # the supervisor holds the same lock through its own copy
    return True


def watch(layout: Layout, names: tuple[str, ...]) -> Iterator[state.StackState]:
    """Yield the state repeatedly until all services with these names are up.

    Raises:
        Transient: the stack gave up and ended; `where["service"]` names the cause, and `where["port"]` a port
            that another program had taken, if that was it.
    """
    while True:
        recorded = state.read(layout)
        if recorded:
            if not recorded.supervised:
                last = state.read(layout) or recorded  # it may have written more before it ended
                if last.error:
                    lost = last.lost_port or provision.lost_port(layout, last.culprit)
                    raise Transient(last.error, service=last.culprit, port=lost or "")
                raise Transient("The stack was stopped while it started", service="supervisor")
            yield recorded
            if set(names) <= set(recorded.services) and recorded.all_up and not recorded.error:
                return
        elif not _locked(layout):
            raise Transient("The supervisor did not start", service="supervisor")
        time.sleep(_TICK)


def with_recorded(layout: Layout, names: tuple[str, ...]) -> tuple[str, ...]:
    """`names` plus the services that the stack was running when it gave up."""
    recorded = state.read(layout)
    return tuple({*names, *(recorded.services if recorded else ())})


def stop(layout: Layout, progress: Progress) -> bool:
    """Stop everything and wait for it; False if nothing ran."""
    try:
        return _stop(layout, progress)
    finally:
        # Outside a home with a long path, which is removed with all that is in it.
        with suppress(OSError):  # it is in use, or none is there
            code_server_socket().parent.rmdir()


def _stop(layout: Layout, progress: Progress) -> bool:
    recorded = state.read(layout)
    if recorded and recorded.supervised:
        os.kill(recorded.supervisor.pid, signal.SIGTERM)
        while recorded and recorded.supervised:
            running = [name for name, service in recorded.services.items() if service.process]
            progress.step("Stopping", ", ".join(running))
            time.sleep(_TICK)
            recorded = state.read(layout)
        return True
    if not layout.home.exists():
        return False
    lock = _lock(layout)
    if lock is None:
        raise Transient("A `pulse up` is still preparing", fix="Interrupt it there, or wait until it is done")
    try:
        return _clear_leftovers(layout, progress) > 0
    finally:
        os.close(lock)


def _fetch(names: tuple[str, ...], progress: Progress) -> None:
    """Fetch what is missing, in parallel: one item is built, others come from the network."""
    missing, details, ending = services.missing_downloads(names), dict[str, str](), threading.Event()

    def fetch(download: Download) -> str:
        def report(detail: str) -> None:
            if ending.is_set():
                raise Transient(f"{download.title} was not fetched to its end")
            details[download.title] = detail

        started = time.monotonic()
        report("")
        download.fetch(report)
        del details[download.title]
        return f"{download.title} fetched in {time.monotonic() - started:.0f} s"

    with ThreadPoolExecutor(max(1, len(missing)), "fetch") as pool:
        fetching = {pool.submit(fetch, download) for download in missing}
        try:
            while fetching:
                progress.step(
                    "Fetching", "; ".join(f"{title} {detail}" for title, detail in details.copy().items())
                )
                done, fetching = wait(fetching, _TICK)
                for fetched in done:
                    progress.done(fetched.result())
        finally:  # also after a failure or Ctrl-C
            ending.set()


def _clear_leftovers(layout: Layout, progress: Progress) -> int:
    """End the services of a supervisor that was killed: a second set beside them would conflict."""
    progress.step("Looking for leftovers")
    # All of them take SIGINT as an orderly shutdown; Postgres too.
    if count := end_unowned(layout, signal.SIGINT, _LEFTOVER_SECONDS):
        progress.done(f"{count} processes of a supervisor that was killed have been stopped")
    return count


def _launch(layout: Layout, names: tuple[str, ...], definitions: str, lock: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != MARK}
    arguments = ("--services", ",".join(names), "--definitions", definitions, "--detach")
    with layout.log("supervisor").open("ab") as log:
        # Exits at once, which leaves the supervisor without a parent.
        subprocess.run(
            python("pulse_resources.local.supervisor", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=layout.home,
            env=environment | {"PULSE_HOME": str(layout.home)},
            pass_fds=(lock,),
            check=True,
        )
    load_settings.cache_clear()


def _lock(layout: Layout) -> int | None:
    """Take the stack's lock; None if a supervisor, or a `pulse up` that prepares one, holds it."""
    file = os.open(layout.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _locked(layout: Layout) -> bool:
    lock = _lock(layout)
    if lock is not None:
        os.close(lock)
    return lock is None
