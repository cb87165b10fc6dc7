"""Scope of a run: its process builds only the definitions that the run needs.

Dagster builds the definitions again in the process of each run. They have an asset and a check of every slug,
which took 8 ms of a slow core per slug, so that a batch of one event cost more with each dataset.
"""

import os
from collections.abc import Callable
from typing import Any

from dagster import AssetKey, DagsterInstance
from dagster._core.instance.ref import InstanceRef
from dagster._grpc.types import ExecuteExternalJobArgs
from dagster._serdes import deserialize_value

from pulse_resources.process.niceness import BACKGROUND


class RunScope:
    """One run: its job, and the assets that it materializes or checks."""

    def __init__(self, job: str, run_id: str, instance: InstanceRef) -> None:
        self.job = job
        self._run_id, self._instance = run_id, instance

    def assets(self) -> frozenset[AssetKey] | None:
        """Assets that the run was given; None if it was given none, so that they follow from its job."""
        with DagsterInstance.from_ref(self._instance) as instance:
            run = instance.get_run_by_id(self._run_id)
        if run is None or (run.asset_selection is None and run.asset_check_selection is None):
            return None
        checked = {check.asset_key for check in run.asset_check_selection or ()}
        return frozenset((run.asset_selection or frozenset()) | checked)


_current: RunScope | None = None
_parted = False


def build_parted() -> None:
    """Declare this process the code server, which builds parts separately (see `parts`)."""
    global _parted
    _parted = True


def parted() -> bool:
    """Whether this process builds parts separately, and all definitions without them."""
    return _parted


def current() -> RunScope | None:
    """The run that this process exists for; None in all other processes."""
    return _current


def start(work: Callable[..., None], serialized: str, *arguments: Any) -> None:
    """Do Dagster's work of a run in a process that is the run's alone.

    Args:
        work: Dagster's function.
        serialized: its first argument, which names the run.
        arguments: its other arguments.
    """
    global _current
    os.nice(BACKGROUND)  # and not the server itself, which evaluates the sensors and launches the next run
    request = deserialize_value(serialized, ExecuteExternalJobArgs)
    if request.instance_ref is not None:
        _current = RunScope(request.job_origin.job_name, request.run_id, request.instance_ref)
    work(serialized, *arguments)
