"""Clients of botocore: one of each key, and each table of a tenant's own has a key of its own."""

import subprocess
import sys
import tracemalloc
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulse_resources.object_store import s3_client

MIB = 1024 * 1024
FORKING = """
import os
from pulse_resources.object_store import s3_client
with s3_client._making:
    child = os.fork()
    if not child:
        os._exit(0 if s3_client.client("http://127.0.0.1:9", "us-east-1", "key", "secret") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def make(number: int = 0) -> Any:
    return s3_client.client("http://127.0.0.1:9", "us-east-1", f"key-{uuid.uuid4()}", "secret")


def test_a_client_takes_little_memory() -> None:
    """With a description of S3 of its own it took 12 MB: a loop of new tables filled the catalog's memory."""
    make().get_paginator("list_objects_v2")
    tracemalloc.start()
    try:
        clients = [make() for _ in range(5)]
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes < len(clients) * 2 * MIB


def test_threads_make_clients_at_the_same_time() -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(make, range(32)))
    keys = {client._request_signer._credentials.access_key for client in clients}
    assert len(keys) == len(clients)


def test_a_fork_while_a_client_is_made_makes_its_own() -> None:
    """In a process of its own: threads of other libraries do not survive a fork of this one."""
    subprocess.run([sys.executable, "-c", FORKING], check=True)


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Any:
    yield
    s3_client.client.cache_clear()
