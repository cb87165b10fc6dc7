"""Memory limit of a process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def limit(size: int) -> None:
    """Limit this process's allocations to `size` bytes: exceeding it fails, or ends the process.

    The limit is on data, not address space, which would include libraries.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let this process take `size` bytes more while the block runs; what handles its errors has no limit."""
    limit(data_bytes() + size)
    try:
        yield
    finally:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def data_bytes() -> int:
    """Bytes of this process that count against the limit already. Raises OSError: they are not known."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")
