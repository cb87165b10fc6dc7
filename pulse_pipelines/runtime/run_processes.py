"""Runs that have a process: known in the code server only, which also evaluates sensors."""

from collections.abc import Callable, Set

_sources: list[Callable[[], Set[str]]] = []


def tell(runs_with_process: Callable[[], Set[str]]) -> None:
    """Let this process, the code server, know the ids of the runs that have a process."""
    _sources[:] = [runs_with_process]


def has_process(run_id: str) -> bool:
    """Whether a run has a process, as far as this process knows: outside the code server it knows of none."""
    return any(run_id in runs_with_process() for runs_with_process in _sources)
