"""HTTP API in a process of its own, on a free port."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from chaos.surroundings import TLS
from chaos.waiting import wait
from pulse_resources.local import ports
from pulse_resources.local.front_ends import API

ENVIRONMENT = {"PULSE_API__DELIVERY_TIMEOUT_SECONDS": "2", "PULSE_API__ACCESS_LOG": "false"}
"""It does not wait long for a broker that is stopped."""


@contextmanager
def served() -> Iterator[str]:
    """Run the API while the block runs; yields its URL."""
    port = ports.choose_any(())
    environment = os.environ | ENVIRONMENT | {"PULSE_API__PORT": str(port), "PULSE_API__HEALTH_PORT": "0"}
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [sys.executable, "-m", API], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait(lambda: server.poll() is not None or _ready(url), "the API does not begin")
            assert server.poll() is None, f"the API ended at once: has somebody taken port {port}?"
            yield url
        finally:
            server.kill()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", verify=TLS).is_success
    except httpx.TransportError:
        return False
