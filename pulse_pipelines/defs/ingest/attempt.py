"""Resource for the attempt of a run; it lives as long as the run."""

from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg
from pydantic import PrivateAttr

from pulse_pipelines.ingest import attempts, steps
from pulse_pipelines.ingest.stages import Plan


class BatchAttempt(dg.ConfigurableResource):  # type: ignore[type-arg]
    """One attempt at one batch. Its lease ends with the process, however that ends."""

    batch_id: str
    attempt: int
    _plan: Plan | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Generator["BatchAttempt", None, None]:
        with steps.owned(self.batch_id, self.attempt) as plan:
            self._plan = plan
            yield self

    @property
    def plan(self) -> Plan:
        """The plan that this attempt has to settle."""
        assert self._plan is not None, "the resource is not initialised"  # noqa: S101
        return self._plan

    def give_up(self, error: str) -> None:
        """End the attempt, so that the sensor plans the next one."""
        attempts.next_attempt(self.batch_id, self.attempt, error)
