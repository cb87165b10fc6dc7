"""What a test does when the process under test, which is its own, comes by a fail point."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from pulse_resources.process import faults


class AtPoint(Protocol):
    def __call__(self, point: str, then: Callable[[], Any], *, always: bool = False) -> list[Any]:
        """Do something when a point is reached for the first time, or always; gives what it returned."""


def often(points: Iterable[str], *always: str) -> list[Any]:
    """Fail points as parameters, of which only some are for each run; the others are `slow`."""
    return [point if point in always else pytest.param(point, marks=pytest.mark.slow) for point in points]


@pytest.fixture
def at() -> Iterator[AtPoint]:
    with ExitStack() as stack:

        def at(point: str, then: Callable[[], Any], *, always: bool = False) -> list[Any]:
            done: list[Any] = []

            def reached() -> None:
                if always or not done:
                    done.append(None)
                    done[-1] = then()

            stack.enter_context(faults.at(point, reached))
            return done

        yield at
