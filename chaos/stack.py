"""Stack under test: Postgres and MinIO in one folder, everything that reaches them by a proxy in another.

The harness connects to both directly, so that it sees the truth while Pulse cannot.
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
    """Services of a stack beside those that run batches."""

    PLAIN = 0
    """No Dagster: the scenario runs batches itself."""
    DAGSTER = 1
    """Dagster and the API, as in production, and disks that can be full."""
    CLOCKS = 2
    """Dagster and the API, and clocks that can be wrong."""
    DEFAULTS = 3
    """Dagster and the API, with default settings."""


DISK_MIB = {"postgres": 1024, "main": 2048, "scratch": 64}
"""Sizes of disks that can be full: Postgres' data, all that Pulse itself writes, Spark's scratch space."""


@dataclass(frozen=True)
class Stack:
    """Addresses and handles of a running stack."""

    home: Path
    postgres: Proxy
    minio: Proxy
    by_proxy: Mapping[str, str]
    """Environment that reaches Postgres and MinIO through the proxy, as all of Pulse does here."""
    disks: Mapping[str, Path]
    """Mount points of `DISK_MIB`; only root can make them."""
    clocks: Mapping[str, Clock]
    """Clocks of `storage` (Postgres only: MinIO reads the system clock itself) and of `main`."""

    def end(self, service: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a service; does nothing if it is not running."""
        settings = state.read(Layout(self.home / ("storage" if service in STORAGE else "main")))
        if settings and (process := settings.services[service].process):
            with suppress(ProcessLookupError):
                # Postgres takes signals by its main process; the other services have children.
                (os.kill if service == "postgres" else os.killpg)(process.pid, number)

    @contextmanager
    def full(self, disk: str) -> Iterator[None]:
        """Fill a disk completely while the block runs."""
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
    """Run a new stack while the block runs; removed afterwards.

    Args:
        home: its folder.
        kind: its services.
        environment: settings of all its processes.
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
        settings = load_settings()
        upstream = {
            "postgres": settings.postgres.port,
            "minio": int(settings.object_store.endpoint.rpartition(":")[2]),
        }
        with proxy.running(upstream) as proxies:
            by_proxy = main | _addresses(settings, proxies["postgres"].port, proxies["minio"].port)
            only = ["--without-dagster"] if kind == Kind.PLAIN else []
            pulse("up", *only, environment={**by_proxy, **_clock(clocks, "main")})
            os.environ |= main | _addresses(settings, upstream["postgres"], upstream["minio"])
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


def _addresses(settings: Settings, postgres_port: int, minio_port: int) -> dict[str, str]:
    """Settings that tell `pulse up` of services that are already running."""
    store = settings.object_store
    vending = store.vending_secret_key
    assert vending is not None, "an embedded store has an account that vends credentials"
    return {
        "PULSE_POSTGRES__HOST": "127.0.0.1",
        "PULSE_POSTGRES__PORT": str(postgres_port),
        "PULSE_POSTGRES__SUPERUSER_PASSWORD": settings.postgres.superuser_password.get_secret_value(),
        "PULSE_OBJECT_STORE__ENDPOINT": f"http://127.0.0.1:{minio_port}",
        "PULSE_OBJECT_STORE__ACCESS_KEY": store.access_key,
        "PULSE_OBJECT_STORE__SECRET_KEY": store.secret_key.get_secret_value(),
        "PULSE_OBJECT_STORE__VENDING_ACCESS_KEY": store.vending_access_key,
        "PULSE_OBJECT_STORE__VENDING_SECRET_KEY": vending.get_secret_value(),
        "PULSE_OBJECT_STORE__VENDING_BY_TENANT": str(store.vending_by_tenant),
    }


def _make_disks(home: Path) -> dict[str, Path]:
    """Make disks small enough to be filled; Postgres' data moves to its own."""
    pulse("down", environment=_at(home, "storage"))
    paths = _paths(home)
    copy = paths["postgres"].with_name(f"{paths['postgres'].name}.kept")
    paths["postgres"].rename(copy)
    for name, path in paths.items():
        path.mkdir(parents=True)
        command = ("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB[name]}m,mode=755", "tmpfs", str(path))
        subprocess.run(command, check=True)
    subprocess.run(["cp", "-a", f"{copy}/.", str(paths["postgres"])], check=True)  # noqa: S607
    shutil.rmtree(copy)
    return paths


def _paths(home: Path) -> dict[str, Path]:
    """Mount points, outer ones before those inside them."""
    postgres = (home / "storage" / "postgres").resolve()  # outside, if its account cannot enter this folder
    return {"postgres": postgres, "main": home / "main", "scratch": home / "main" / "spark" / "local"}


def _remove(home: Path) -> None:
    paths = _paths(home)
    for path in reversed(paths.values()):
        if path.is_mount():
            subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S607
    for folder in (*accounts.elsewhere(home / "main"), *accounts.elsewhere(home / "storage"), home):
        shutil.rmtree(folder, ignore_errors=True)
