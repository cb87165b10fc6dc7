"""How many random cases a test draws."""

from typing import Any

from hypothesis import settings


def times(factor: float, **more: Any) -> settings:
    """So many times what the profile says: 20 cases in `make test`, 10 in `make test-fast`, 60 in
    `make test-slow`."""
    return settings(max_examples=round(factor * settings().max_examples), **more)
