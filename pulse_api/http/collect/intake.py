"""Intake of one request: validate its events, and publish those that are accepted or dead-lettered."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from fastapi import Request

from pulse_api.http.app_state import AppState
from pulse_api.http.auth import Principal, take
from pulse_api.http.collect import body as bodies, large
from pulse_api.http.collect.body_memory import BodyHolding
from pulse_api.http.collect.large import items_of
from pulse_api.http.collect.publisher import Unacknowledged
from pulse_api.http.collect.verdicts import Validation, Verdicts
from pulse_api.http.problems import ProblemError
from pulse_api.http.telemetry import Carried
from pulse_api.http.views import ScopedValidator
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.quota import COUNTED
from pulse_resources.settings import load_settings

USUAL_COMPRESSION = 8
"""Typical ratio of decompressed to compressed size."""


@dataclass(frozen=True)
class Intake:
    """Intake of one request.

    Args:
        kind: kind of the datasets that the request may address.
        describing: headers that say how its body is read (`split.describing`).
        records_per_month: the tenant's monthly quota for these records.
        carried: trace headers for its messages.
        publishes: False: all of it was published before, so that what has come since must stay.
    """

    state: AppState
    request: Request
    principal: Principal
    kind: DatasetKind
    describing: Mapping[str, str]
    records_per_month: int
    carried: Carried | None
    publishes: bool = True

    async def verdicts(self) -> Verdicts:
        """Verdict of each event; accepted and dead-lettered events are published.

        Raises:
            ProblemError: the body cannot be read, or a limit is reached; nothing was published.
            Unacknowledged: the broker did not acknowledge all events.
        """
        with self.state.body_memory.of(self._tenant_id) as holding:
            verdicts = await self._validate(holding)
            if verdicts.outgoing and self.publishes:
                await self._publish(verdicts)
        return verdicts

    @property
    def _tenant_id(self) -> UUID:
        return self.principal.tenant.tenant_id

    async def _validate(self, holding: BodyHolding) -> Verdicts:
        """Verdict of each event; the tenant's requests take turns."""
        content, encoding = await self._received(holding)
        cached = self.principal.cached
        verdicts = await self._validate_by(cached.of(self.kind), content, encoding, holding)
        if verdicts.unknown_datasets and (now := await self.state.views.changed(cached)) is not None:
            verdicts = await self._validate_by(now.of(self.kind), content, encoding, None)
        return verdicts

    async def _validate_by(
        self, scoped: ScopedValidator, content: bytes, encoding: str | None, holding: BodyHolding | None
    ) -> Verdicts:
        """Verdicts of this validator. Without a holding: again, so that nothing is counted twice."""
        first = holding is not None
        if encoding is None and self.state.running.short(self._tenant_id, len(content)):
            validation = await self._validate_in_loop(scoped, content, counts=first)
        else:
            validation = await self._validate_in_worker(scoped, content, encoding, counts=first)
            if holding is not None:
                holding.add(0 if encoding is None else validation.size)
        while not validation.done:
            await validation.validate_in_worker(scoped.validator)
        return validation.verdicts()

    async def _received(self, holding: BodyHolding) -> tuple[bytes, str | None]:
        """The body, and its remaining content encoding: a short body is decompressed at once."""
        limits, encoding = load_settings().api, bodies.encoding_of(self.request.headers)
        content = await bodies.received(self.request, limits.max_body_bytes, holding)
        short = partial(self.state.running.short, self._tenant_id)
        if encoding is None or not short(USUAL_COMPRESSION * len(content)):
            return content, encoding
        work = partial(bodies.decompress, content, encoding, limits)
        content = await self.state.running.in_loop(self._tenant_id, work)
        holding.add(len(content))
        return content, None

    async def _validate_in_loop(self, scoped: ScopedValidator, content: bytes, *, counts: bool) -> Validation:
        """Validate all events but the expensive ones in the event loop."""
        run, validator = partial(self.state.running.in_loop, self._tenant_id), scoped.validator

        def begin() -> Validation:
            items = items_of(content, self.describing)
            if counts:
                self._count(len(items))
            validation = Validation(items)
            validation.go_on(validator)
            return validation

        validation = await run(begin)
        while not validation.at_end:
            await run(partial(validation.go_on, validator))
        return validation

    async def _validate_in_worker(
        self, scoped: ScopedValidator, content: bytes, encoding: str | None, *, counts: bool
    ) -> Validation:
        """Validate all events but the expensive ones in a worker process."""
        run, scope = partial(self.state.running.in_worker, self._tenant_id), scoped.packed_scope
        validation = await run(large.begin, scope, content, encoding, self.describing)
        if counts:
            self._count(validation.count)
        while not validation.at_end:
            validation = await run(large.go_on, scope, validation)
        return validation

    def _count(self, events: int) -> None:
        """Count a request's events against the tenant's rate. Raises ProblemError: 429 beyond it."""
        if not events:  # an empty part of a sync owes nothing, even of a rate that is in debt
            return
        limits = self.principal.cached.view.limits
        take(self.state, self.principal.tenant, "events", events, limits.events_per_second)

    async def _publish(self, verdicts: Verdicts) -> None:
        state, tenant, count = self.state, self.principal.tenant, len(verdicts.outgoing)
        maximum = self.records_per_month
        reserved = await state.reservations.reserve(tenant, verdicts.outgoing, maximum)
        if reserved is None:
            raise ProblemError(
                429,
                "quota-exceeded",
                f"the monthly quota of {maximum:,} records has no room for {count:,} more",
                fix="See GET /v1/usage; ask the operator for more, or wait for the next month",
            )
        headers: Carried | None = {**(self.carried or {}), COUNTED: b""} if reserved else self.carried
        try:
            await state.publisher.publish(tenant.topic, verdicts.outgoing, headers)
        except Unacknowledged as error:
            await state.reservations.release(tenant, reserved, error.sent)
            raise
