"""The stack that is harmed: Postgres and MinIO in one folder, what reaches them by a proxy in another.

The harness itself goes straight to both, so that it sees what is true while Pulse does not.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chaos import proxy
from chaos.proxy import Proxy
from pulse_resources import kafka, object_store, postgres
from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings, load_settings

PULSE = str(Path(sys.executable).parent / "pulse")
STORAGE = "postgres,minio"


@dataclass(frozen=True)
class Stack:
    """Where things are."""

    home: Path
    postgres: Proxy
    minio: Proxy
    by_proxy: Mapping[str, str]
    """Environment of a process that reaches Postgres and MinIO by the proxy, as all of Pulse does here."""
    postgres_disk: Path | None
    """Where Postgres keeps its data, if that is a disk of its own; only root can make one."""

    def end(self, service: str, number: signal.Signals) -> None:
        """Send a signal to a service's processes, all at once; nothing when it does not run."""
        folder = self.home.parent / ("storage" if service in STORAGE.split(",") else "main")
        found = state.read(Layout(folder))
        if found and (process := found.services[service].process):
            with suppress(ProcessLookupError):
                # Postgres alone takes its signals by its first process; the others have children.
                (os.kill if service == "postgres" else os.killpg)(process.pid, number)

    @contextmanager
    def postgres_disk_full(self) -> Iterator[None]:
        """Not a byte is left on Postgres' disk while the block runs."""
        assert self.postgres_disk, "only root can give Postgres a disk of its own"
        filler = self.postgres_disk / "filler"
        try:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(65_536))
            yield
        finally:
            filler.unlink()

    def power_cut(self) -> None:
        """Kill every process of Pulse, and start everything again."""
        for folder in (self.home, self.home.parent / "storage"):
            for process in processes.marked(str(folder)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        _pulse({"PULSE_HOME": str(self.home.parent / "storage")}, "up", "--only", STORAGE)
        _pulse(self.by_proxy, "up")


@contextmanager
def stack(home: Path, *, dagster: bool, **environment: str) -> Iterator[Stack]:
    """All of Pulse from nothing, while the block runs; removed afterwards.

    Args:
        home: a folder for it.
        dagster: with it, and with the API; else tests take the batches themselves.
        environment: of all that runs.
    """
    storage, main = {"PULSE_HOME": str(home / "storage")}, {"PULSE_HOME": str(home / "main")}
    before = dict(os.environ)
    os.environ |= environment
    _remove(home)
    try:
        _pulse(storage, "up", "--only", STORAGE)
        disk = _small_disk(home, storage) if dagster else None
        os.environ |= storage
        _forget()
        found = load_settings()
        upstream = {
            "postgres": found.postgres.port,
            "minio": int(found.object_store.endpoint.rpartition(":")[2]),
        }
        with proxy.running(upstream) as proxies:
            by_proxy = main | _addresses(found, proxies["postgres"].port, proxies["minio"].port)
            _pulse(by_proxy, "up", *([] if dagster else ["--without-dagster"]))
            os.environ |= main | _addresses(found, upstream["postgres"], upstream["minio"])
            _forget()
            yield Stack(home / "main", proxies["postgres"], proxies["minio"], by_proxy, disk)
    finally:
        _forget()
        for each in (main, storage):
            _pulse(each, "down")
        _remove(home)
        os.environ.clear()
        os.environ |= before
        _forget()


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


def _pulse(environment: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [PULSE, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"pulse {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def _small_disk(home: Path, storage: Mapping[str, str]) -> Path | None:
    """Give Postgres a disk of its own, of 1 GiB."""
    if os.geteuid():
        return None
    data = (home / "storage" / "postgres").resolve()
    _pulse(storage, "down")
    kept = data.with_name(f"{data.name}.kept")
    data.rename(kept)
    data.mkdir()
    for command in (
        ("mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(data)),
        ("cp", "-a", f"{kept}/.", str(data)),
    ):
        subprocess.run(command, check=True)
    shutil.rmtree(kept)
    _pulse(storage, "up", "--only", STORAGE)
    return data


def _remove(home: Path) -> None:
    data = (home / "storage" / "postgres").resolve()  # elsewhere, where Postgres' account cannot come here
    if data.is_mount():
        subprocess.run(["umount", "-l", str(data)], check=True)  # noqa: S607
    shutil.rmtree(data, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def _forget() -> None:
    postgres.close_pools()
    for cached in (load_settings, kafka.admin, object_store.file_system):
        cached.cache_clear()
