"""Toxiproxy between Pulse and a service: cuts, delays, hangs or refuses connections."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from chaos.waiting import PATIENCE_S
from pulse_resources.local import ports
from pulse_resources.local.downloads import Download, Report, run
from pulse_resources.local.prerequisites import go

MODULE = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"


def _build(folder: Path, report: Report) -> None:
    def tick(seconds: float) -> None:
        report(f"building with Go, {seconds:.0f} s")

    run([go(), "install", "-trimpath", MODULE], "Toxiproxy", tick, {"GOBIN": str(folder), "CGO_ENABLED": "0"})


DOWNLOAD = Download(f"toxiproxy-{MODULE.rpartition('@')[2]}", "Toxiproxy", _build)


@dataclass(frozen=True)
class Proxy:
    """One service behind the proxy, reached through `port`."""

    api: httpx.Client
    name: str
    port: int
    """Port of the proxy."""
    upstream: int
    """Port of the service."""

    @contextmanager
    def elsewhere(self, port: int) -> Iterator[None]:
        """Redirect connections to another port while the block runs; open ones are cut."""
        self._set(upstream=f"127.0.0.1:{port}")
        try:
            yield
        finally:
            self._set(upstream=f"127.0.0.1:{self.upstream}")

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Cut and refuse connections while the block runs."""
        self._set(enabled=False)
        try:
            yield
        finally:
            self._set(enabled=True)

    @contextmanager
    def toxic(
        self,
        kind: Literal["latency", "bandwidth", "timeout", "limit_data"],
        stream: Literal["upstream", "downstream"] = "downstream",
        toxicity: float = 1.0,
        **attributes: int,
    ) -> Iterator[None]:
        """Apply a toxic while the block runs.

        Args:
            kind: Toxiproxy's name: `timeout` with timeout=0 blocks all data and keeps connections open;
                `limit_data` closes a connection after so many bytes.
            stream: direction, to the service or from it.
            toxicity: share of affected connections.
            attributes: parameters of the kind, such as latency in ms, rate in kB/s, bytes.
        """
        toxic = {"name": kind, "type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        self.api.post(f"/proxies/{self.name}/toxics", json=toxic).raise_for_status()
        try:
            yield
        finally:
            self.api.delete(f"/proxies/{self.name}/toxics/{kind}").raise_for_status()

    def _set(self, **values: object) -> None:
        self.api.post(f"/proxies/{self.name}", json=values).raise_for_status()


@contextmanager
def running(services: Mapping[str, int]) -> Iterator[dict[str, Proxy]]:
    """Run a proxy for each service while the block runs.

    Args:
        services: port on this machine by service name.
    """
    DOWNLOAD.fetch(lambda _: None)
    port = ports.choose_any(services.values())
    command = [str(DOWNLOAD.path / "server"), "-host", "127.0.0.1", "-port", str(port)]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as api,
    ):
        try:
            _wait_for(api)
            yield {name: _added(api, name, upstream) for name, upstream in services.items()}
        finally:
            server.kill()


def _wait_for(api: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            api.get("/version").raise_for_status()
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _added(api: httpx.Client, name: str, upstream: int) -> Proxy:
    body = {"name": name, "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{upstream}", "enabled": True}
    created = api.post("/proxies", json=body).raise_for_status().json()
    return Proxy(api, name, int(created["listen"].rpartition(":")[2]), upstream)
