"""Memory: how much a process may allocate."""

import resource


def limit(size: int) -> None:
    """Let this process allocate no more bytes: what wants more fails, or ends it.

    Of what it allocates: its address space would count libraries, too.
    """
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
