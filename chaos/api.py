"""Pulse's API in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from chaos.waiting import PATIENCE_S, wait
from pulse_resources.local import ports


@contextmanager
def served() -> Iterator[int]:
    """Run the API while the block runs; yields its port."""
    port = ports.choose_any(())
    environment = os.environ | {"PULSE_API__PORT": str(port), "PULSE_API__HEALTH_PORT": "0"}
    arguments = [sys.executable, "-m", "pulse_api.http.server"]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            wait(lambda: _ready(process, port), "the API does not start")
            yield port
        finally:
            process.terminate()


def _ready(process: "subprocess.Popen[bytes]", port: int) -> bool:
    assert process.poll() is None, "the API did not start"
    try:
        return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S).ok
    except requests.RequestException:
        return False
