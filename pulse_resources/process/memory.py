"""Memory limit of a process."""

import resource


def limit(size: int) -> None:
    """Limit this process's allocations to `size` bytes: exceeding it fails, or ends the process.

    The limit is on data, not address space, which would include libraries.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
