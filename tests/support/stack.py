"""The real services, started once per session on free ports in a folder of their own."""

import json
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from chaos.surroundings import forget_connections, pulse
from pulse_resources.home import write_atomically
from pulse_resources.local import accounts, front_ends, ports, provision
from pulse_resources.local.layout import Layout
from pulse_resources.local.services import INFRASTRUCTURE
from pulse_resources.settings import Settings, load_settings
from support import endings


def choose_ports(home: Path, *, tls: bool = False) -> None:
    """Give a stack, before it first starts, ports that none of another process of tests has or takes."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    chosen: dict[str, int] = {}
    for name in provision.DEFAULT_PORTS:
        while (port := ports.choose_any(chosen.values())) % processes != number:
            pass
        chosen[name] = port
    write_atomically(Layout(home).settings_file, json.dumps({"local": {"tls": tls, "ports": chosen}}))


def stop() -> None:
    """Stop the stack and remove what it keeps outside its folder."""
    pulse("down")
    for folder in accounts.elsewhere(load_settings().home):
        shutil.rmtree(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Drop the settings of a test's own home: a thread of a server may have read them during the test."""
    home = os.environ.get("PULSE_HOME")
    yield
    if os.environ.get("PULSE_HOME") != home:
        load_settings.cache_clear()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Postgres, Kafka, MinIO, Spark and the HTTP API, without Dagster: tests drive the batches themselves.

    With PULSE_TEST_HOME the stack in that folder is used and left running.
    """
    shared = os.environ.get("PULSE_TEST_HOME")
    home = Path(shared) if shared else tmp_path_factory.mktemp("pulse")
    if not Layout(home).settings_file.exists():
        home.mkdir(parents=True, exist_ok=True)
        choose_ports(home)
    os.environ["PULSE_HOME"] = str(home)
    # A shared stack outlives this run of tests.
    environment = {endings.MARK: ""} if shared else None
    pulse("up", "--only", ",".join((*INFRASTRUCTURE, "api")), environment=environment)
    forget_connections()
    yield load_settings()
    forget_connections()
    if not shared:
        stop()


@pytest.fixture(scope="session")
def api_service(stack: Settings) -> str:
    """The address of the stack's HTTP API."""
    return front_ends.api_url(stack)
