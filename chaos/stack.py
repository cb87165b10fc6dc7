"""The stack that is harmed: Postgres and MinIO in one folder, what reaches them by a proxy in another.

The harness itself goes straight to both, so that it sees what is true while Pulse does not.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from chaos import proxy
from chaos.clock import Clock
from chaos.proxy import Proxy
from chaos.surroundings import forget_connections, pulse
from pulse_resources.local import accounts, processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings, load_settings

STORAGE = ("postgres", "minio")


class Kind(IntEnum):
    """What a stack has beside the services that take batches."""

    PLAIN = 0
    """No Dagster: the scenario takes the batches itself."""
    DAGSTER = 1
    """Dagster and the API, as in production, and disks that can be full."""
    CLOCKS = 2
    """Dagster and the API, and clocks that can be wrong."""
    DEFAULTS = 3
    """Dagster and the API, with the settings that Pulse has where nobody sets any."""


DISK_MIB = {"postgres": 1024, "main": 2048, "scratch": 64}
"""Of the disks that can be full: Postgres' data, all that Pulse itself writes, Spark's scratch space."""


@dataclass(frozen=True)
class Stack:
    """Where things are."""

    home: Path
    postgres: Proxy
    minio: Proxy
    by_proxy: Mapping[str, str]
    """Environment of a process that reaches Postgres and MinIO by the proxy, as all of Pulse does here."""
    disks: Mapping[str, Path]
    """Those of `DISK_MIB`; only root can make them."""
    clocks: Mapping[str, Clock]
    """Of the two parts: `storage` (which is Postgres alone: MinIO asks the system itself) and `main`."""

    def end(self, service: str, number: signal.Signals) -> None:
        """Send a signal to a service's processes, all at once; nothing when it does not run."""
        found = state.read(Layout(self.home / ("storage" if service in STORAGE else "main")))
        if found and (process := found.services[service].process):
            with suppress(ProcessLookupError):
                # Postgres alone takes its signals by its first process; the others have children.
                (os.kill if service == "postgres" else os.killpg)(process.pid, number)

    @contextmanager
    def full(self, disk: str) -> Iterator[None]:
        """Not a byte is left on a disk while the block runs."""
        assert disk in self.disks, "only root can make a disk that can be full"
        filler = self.disks[disk] / "filler"
        try:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(65_536))
            yield
        finally:
            filler.unlink()

    def power_cut(self) -> None:
        """Kill every process of Pulse, and start everything again."""
        for part in ("main", "storage"):
            for process in processes.marked(str(self.home / part)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        _up_storage(self.home, self.clocks)
        pulse("up", environment={**self.by_proxy, **_clock(self.clocks, "main")})


@contextmanager
def stack(home: Path, kind: Kind, **environment: str) -> Iterator[Stack]:
    """All of Pulse from nothing, while the block runs; removed afterwards.

    Args:
        home: a folder for it.
        kind: what it has.
        environment: of all that runs.
    """
    main = _at(home, "main")
    before = dict(os.environ)
    os.environ |= environment
    _remove(home)
    clocks = {part: Clock.made() for part in ("storage", "main")} if kind == Kind.CLOCKS else {}
    disks: dict[str, Path] = {}
    try:
        _up_storage(home, clocks)
        if kind == Kind.DAGSTER and not os.geteuid():
            disks = _make_disks(home)
            _up_storage(home, clocks)
        os.environ |= _at(home, "storage")
        forget_connections()
        found = load_settings()
        upstream = {
            "postgres": found.postgres.port,
            "minio": int(found.object_store.endpoint.rpartition(":")[2]),
        }
        with proxy.running(upstream) as proxies:
            by_proxy = main | _addresses(found, proxies["postgres"].port, proxies["minio"].port)
            only = ["--without-dagster"] if kind == Kind.PLAIN else []
            pulse("up", *only, environment={**by_proxy, **_clock(clocks, "main")})
            os.environ |= main | _addresses(found, upstream["postgres"], upstream["minio"])
            forget_connections()
            yield Stack(home, proxies["postgres"], proxies["minio"], by_proxy, disks, clocks)
    finally:
        forget_connections()
        for part in ("main", "storage"):
            pulse("down", environment=_at(home, part))
        for clock in clocks.values():
            clock.remove()
        _remove(home)
        os.environ.clear()
        os.environ |= before
        forget_connections()


def _up_storage(home: Path, clocks: Mapping[str, Clock]) -> None:
    environment = {**_at(home, "storage"), **_clock(clocks, "storage")}
    pulse("up", "--only", ",".join(STORAGE), environment=environment)


def _at(home: Path, part: str) -> dict[str, str]:
    return {"PULSE_HOME": str(home / part)}


def _clock(clocks: Mapping[str, Clock], part: str) -> Mapping[str, str]:
    return clocks[part].environment if clocks else {}


def _addresses(found: Settings, postgres_port: int, minio_port: int) -> dict[str, str]:
    """What `pulse up` is told of services that are there already."""
    store = found.object_store
    return {
        "PULSE_POSTGRES__HOST": "127.0.0.1",
        "PULSE_POSTGRES__PORT": str(postgres_port),
        "PULSE_POSTGRES__SUPERUSER_PASSWORD": found.postgres.superuser_password.get_secret_value(),
        "PULSE_OBJECT_STORE__ENDPOINT": f"http://127.0.0.1:{minio_port}",
        "PULSE_OBJECT_STORE__ACCESS_KEY": store.access_key,
        "PULSE_OBJECT_STORE__SECRET_KEY": store.secret_key.get_secret_value(),
    }


def _make_disks(home: Path) -> dict[str, Path]:
    """Disks that are small enough to be filled; what Postgres has moves to its own."""
    pulse("down", environment=_at(home, "storage"))
    paths = _paths(home)
    kept = paths["postgres"].with_name(f"{paths['postgres'].name}.kept")
    paths["postgres"].rename(kept)
    for name, path in paths.items():
        path.mkdir(parents=True)
        command = ("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB[name]}m,mode=755", "tmpfs", str(path))
        subprocess.run(command, check=True)
    subprocess.run(["cp", "-a", f"{kept}/.", str(paths["postgres"])], check=True)  # noqa: S607
    shutil.rmtree(kept)
    return paths


def _paths(home: Path) -> dict[str, Path]:
    """Of the disks, an outer one before those in it."""
    postgres = (home / "storage" / "postgres").resolve()  # elsewhere, where its account cannot come here
    return {"postgres": postgres, "main": home / "main", "scratch": home / "main" / "spark" / "local"}


def _remove(home: Path) -> None:
    paths = _paths(home)
    for path in reversed(paths.values()):
        if path.is_mount():
            subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S607
    for folder in (*accounts.elsewhere(home / "main"), *accounts.elsewhere(home / "storage"), home):
        shutil.rmtree(folder, ignore_errors=True)
