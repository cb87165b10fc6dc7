"""botocore's client of an S3 store, for what Arrow's cannot do: deletions, and reading what was listed."""

import os
import threading
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pulse_resources.object_store import page_sizes

MAX_CLIENTS = 64
"""Clients per process."""
_making = threading.Lock()
"""A session makes one client at a time."""


@cache
def _session() -> Any:
    """The session that makes all clients: botocore reads its description of S3 (12 MB) once per process."""
    from botocore.session import Session  # a quarter of a second

    return Session()


@lru_cache(MAX_CLIENTS)
def client(
    endpoint: str | None,
    region: str,
    access_key: str,
    secret_key: str,
    session_token: str | None = None,
    ca_file: Path | None = None,
) -> Any:
    """The client of a store with a key; thread-safe.

    Args:
        endpoint: its address; None: AWS's.
        ca_file: authorities that it trusts, other than the machine's.

    Raises:
        botocore.exceptions.BotoCoreError, ValueError: the address is malformed.
    """
    from botocore.config import Config

    with _making:
        s3 = _session().create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint,
            verify=str(ca_file) if ca_file else True,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            aws_session_token=session_token,
            config=Config(
                connect_timeout=10,
                read_timeout=60,
                retries={"total_max_attempts": 5},
                proxies={},
                s3={"addressing_style": "path" if endpoint else "auto"},
            ),
        )
    s3.meta.events.register(page_sizes.EVENT, page_sizes.take_sizes)
    return s3


def _forget_parent() -> None:
    """Drop what a forked process has of its parent's: connections, and a lock that another thread held."""
    global _making
    _making = threading.Lock()
    client.cache_clear()
    _session.cache_clear()


os.register_at_fork(after_in_child=_forget_parent)
