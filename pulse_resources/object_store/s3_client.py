"""botocore's client of an S3 store, for what Arrow's cannot do: deletions, and reading what was listed."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_CLIENTS = 64
"""Clients per process: making one takes 60 to 120 ms."""


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
    from botocore.config import Config  # a quarter of a second
    from botocore.session import Session

    return Session().create_client(
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


os.register_at_fork(after_in_child=client.cache_clear)  # connections stay the parent's
