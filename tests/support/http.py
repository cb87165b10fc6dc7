"""The HTTP API on a port of its own, in this process, in front of the real services."""

import io
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import ASGIApp

from chaos.surroundings import TLS, with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_api.http import logs
from pulse_api.http.app import create_app
from pulse_api.http.server import Server
from pulse_pipelines.domain.key import IssuedKey, KeyScope
from pulse_pipelines.registry import keys
from pulse_resources.local import ports
from pulse_resources.settings import Settings, load_settings
from support.ingest import Owner, make_owner


@dataclass(frozen=True)
class Api:
    """The served API."""

    url: str

    def client(self, key: str | None = None, **headers: str) -> httpx.Client:
        """A client that presents this key."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S, verify=TLS)

    def begin(self, key: str, path: str, body: Any) -> HTTPConnection:
        """Send a request and read no answer: its caller leaves when the test closes the connection."""
        address = httpx.URL(self.url)
        connection = HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", path, orjson.dumps(body), headers)
        return connection


@dataclass(frozen=True)
class Caller:
    """A tenant with the dataset `orders`, and a client with a key of it."""

    owner: Owner
    key: IssuedKey
    http: httpx.Client

    def collect(self, body: Any, **headers: str) -> httpx.Response:
        if isinstance(body, bytes):
            http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
            headers = {"content-type": "application/json"} | http_headers
            return self.http.post("/v1/collect", content=body, headers=headers)
        return self.http.post("/v1/collect", json=body)


def sample(event_id: str | None = None, **data: Any) -> dict[str, Any]:
    """A valid event for `orders`, as it is decoded."""
    return {
        "event_id": event_id or uuid.uuid4().hex,
        "dataset": "orders",
        "timestamp": "2026-11-19T10:00:00Z",
        "data": {"country": "DE"} | data,
    }


@pytest.fixture(scope="session")
def api(stack: Settings) -> Iterator[Api]:
    """One server for all tests, which may ask for more at once than a tenant or an address may."""
    with ExitStack() as until_the_end:
        with with_settings(
            API__BURST_SECONDS=10,
            API__OTHER_REQUESTS_PER_SECOND=100,
            API__CHANGES_PER_SECOND=100,
            SQL__READY=2,
        ):
            running = until_the_end.enter_context(served(max_connections_per_address=0))
        yield running


class served:  # noqa: N801 - used as a context manager
    """A server with an app of its own, while the block runs.

    Args:
        app: another app than that of the API.
        settings: of the API.
    """

    def __init__(self, app: ASGIApp | None = None, **settings: object) -> None:
        self._app, self._settings = app, settings

    def __enter__(self) -> Api:
        # Bound here and now: between a choice of a port and its use, another worker's server could take it.
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        settings = {"port": port, "health_port": 0} | self._settings
        self._server = Server(self._app or create_app(), load_settings().api.model_copy(update=settings))
        self._thread = threading.Thread(target=self._server.run, args=([listening],), daemon=True)
        ready = os.environ.get("PULSE_SQL__READY", 0)
        with with_settings(SQL__READY=ready):  # processes for queries take half of a start, and few tests ask
            self._thread.start()
            watched = settings["health_port"]  # it listens after the server has `started`
            while not self._server.started or (watched and not ports.answers("127.0.0.1", watched)):
                assert self._thread.is_alive(), "the server did not start; the captured log says why"
                time.sleep(0.02)
        return Api(f"http://127.0.0.1:{port}")

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)


@contextmanager
def service_process(
    module: str, section: str, **variables: object
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A process of a service, and its address.

    Args:
        module: which serves it, as `pulse_api.http.server`.
        section: of its settings, as API.
        variables: further settings of that section.
    """
    port = ports.choose_any(())
    settings = {"PORT": port, "HEALTH_PORT": 0} | variables
    environment = {f"PULSE_{section}__{name}": str(value) for name, value in settings.items()}
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-m", module], env=os.environ | environment) as process:

        def serves() -> bool:
            assert process.poll() is None
            try:
                return httpx.get(f"{url}/healthz", timeout=PATIENCE_S, verify=TLS).status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait(serves, "the server did not start")
            yield url, process
        finally:
            process.terminate()


LogLine = Callable[[str], dict[str, Any]]


@pytest.fixture
def log_line() -> Iterator[LogLine]:
    """Waits for the first line with this text of those that this process logs, as a server writes them."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logs.Lines())

    def line_with(text: str) -> dict[str, Any]:
        def lines() -> list[str]:
            return [line for line in handler.stream.getvalue().splitlines() if text in line]

        wait(lambda: bool(lines()), f"nothing was logged of {text}")
        line: dict[str, Any] = orjson.loads(lines()[0])
        return line

    logging.getLogger().addHandler(handler)
    yield line_with
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def new_caller(api: Api) -> Iterator[Callable[..., Caller]]:
    """Makes callers: fresh tenants with a key of these scopes."""
    callers: list[Caller] = []

    def make(scopes: Iterable[KeyScope] = tuple(KeyScope), owner: Owner | None = None) -> Caller:
        owner = owner or make_owner()
        key = keys.issue_key(owner.tenant, "test", scopes)
        callers.append(Caller(owner, key, api.client(key.text)))
        return callers[-1]

    yield make
    for caller in callers:
        caller.http.close()


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    return new_caller()


@pytest.fixture(scope="session")
def operator(api: Api) -> Iterator[httpx.Client]:
    """A client with an operator's key."""
    with api.client(keys.issue_operator_key("tests").text) as client:
        yield client
