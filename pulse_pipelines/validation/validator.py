"""The validator: checks the envelope of a received event, and its data by the dataset's schema. No I/O.

The HTTP API, the drain and the replay of dead letters all use it.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from pulse_pipelines.domain import entities, json_values
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event import MAX_ID_BYTES, Rejected, heading, nesting, suspicious, unstorable
from pulse_pipelines.domain.event_limits import Budget, EventLimits
from pulse_pipelines.domain.misspelled import Spellings
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.schemas.columns import Column
from pulse_pipelines.domain.schemas.cost import cost_of
from pulse_pipelines.domain.schemas.schema import compiled
from pulse_pipelines.domain.schemas.violations import violation
from pulse_pipelines.tables import arrow_columns
from pulse_pipelines.tables.arrow_columns import unusual
from pulse_pipelines.tables.column_fit import ColumnFit
from pulse_pipelines.validation.quick import Quick, decoder, has_numbers, with_long_numbers
from pulse_pipelines.validation.worker_pool import validator_pool

QUICK_SECONDS = 0.001
"""Estimated time (by the cost model of its schema) up to which validating an event is not measured."""
INLINE_SECONDS = 0.04
"""Estimated time up to which an event is validated in this process."""

DECODED_DEPTH = 3
"""Maximum depth of an event that a decoder accepts, apart from its context: a list in its data."""

Event = dict[str, Any]
"""A decoded event with a valid envelope."""


class Refusal(NamedTuple):
    """The rejection of an event, with as much of its identity as could be read and stored."""

    rejected: Rejected
    dataset: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """The compiled check of a schema version."""

    is_valid: Callable[[Any], bool]
    document: str
    quick: int
    """Size in bytes up to which an event takes `QUICK_SECONDS` at most; larger events are measured."""
    largest: int
    """Size in bytes up to which an event is validated in this process; larger ones go to the worker pool."""


class Target:
    """A dataset prepared for validation: a check per schema version, and the types of its columns."""

    def __init__(self, dataset: Dataset, limits: EventLimits) -> None:
        self.dataset = dataset
        self.of_entities = dataset.of_entities
        self.version = dataset.schema_version
        self.checks: dict[int | None, Check] = {
            version: _check(document, limits) for version, document in dataset.documents.items()
        }
        self.checks[None] = self.checks[self.version]  # for events that name no version

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.dataset.columns

    @cached_property
    def schema(self) -> pa.Schema:
        return arrow_columns.arrow_schema(self.dataset.table_schema)

    @cached_property
    def _fit(self) -> ColumnFit:
        return ColumnFit(self.columns)

    def misfit(self, event: "Event", payload: bytes) -> Rejected | None:
        """The rejection of a valid event that its columns cannot hold, as a batch finds it; else None."""
        as_declared = event.get("schema_version") in (None, self.version)
        return self._fit.misfit(event["data"], payload, as_declared=as_declared)


def _check(document: str, limits: EventLimits) -> Check:
    is_valid = compiled(document).is_valid
    if math.isinf(limits.validation_seconds):
        return Check(is_valid, document, sys.maxsize, sys.maxsize)
    cost = cost_of(document)
    return Check(is_valid, document, cost.largest(QUICK_SECONDS), cost.largest(INLINE_SECONDS))


@dataclass(frozen=True)
class Validator:
    """Validates the events of one tenant by envelope and schema.

    Timestamps and column types are checked elsewhere: by `arrow_columns` in a batch, and by the HTTP API.
    """

    scope: Scope
    limits: EventLimits
    budget: Budget = field(default_factory=Budget)
    """CPU time for all events that it validates."""

    @cached_property
    def _slugs(self) -> Spellings:
        return Spellings(self.targets)

    @cached_property
    def targets(self) -> dict[str, Target]:
        """The prepared datasets, by slug."""
        return {dataset.slug: Target(dataset, self.limits) for dataset in self.scope.datasets}

    @cached_property
    def quick(self) -> Quick | None:
        """The decoder of events of plain schemas; None if no dataset has one."""
        names = [name for name in self._tenant_names if name is not None]
        return decoder((target.dataset for target in self.targets.values()), names)

    @cached_property
    def _quick_bytes(self) -> int:
        """Size in bytes up to which an event that a decoder accepts needs no further check."""
        if self.quick is None or self.limits.max_depth < DECODED_DEPTH:
            return 0
        return min(self.limits.max_bytes, *(target.checks[None].quick for target in self.targets.values()))

    def decoded(self, payloads: Sequence[bytes]) -> list[Any]:
        """Decode events by the quick decoder; None for those that need the whole validation."""
        quick, most = self.quick, self._quick_bytes
        if quick is None:
            return [None] * len(payloads)
        lines = b"\n".join(payloads)
        events = quick.all(lines, len(payloads)) if max(map(len, payloads)) <= most else None
        if events is None:
            events = [quick.one(payload) if len(payload) <= most else None for payload in payloads]
        for place in with_long_numbers(lines, payloads):
            if events[place] is not None and json_values.rounds(payloads[place]):
                events[place] = None
        several = [
            place for place, event in enumerate(events) if event is not None and has_numbers(event.context)
        ]
        odd = {several[index] for index in unusual([payloads[place] for place in several])} if several else ()
        for place in several:
            if place in odd or self.undecodable(payloads[place]) is not None:
                events[place] = None
        return events

    @cached_property
    def pace(self) -> tuple[float, float]:
        """The cost of an event and of each of its bytes, as shares of `INLINE_SECONDS`.

        The maximum over all schemas; an event with a share of at most 1 is validated in this process.
        """
        documents = {document for dataset in self.scope.datasets for document in dataset.documents.values()}
        costs = [cost_of(document) for document in documents]
        nanoseconds = INLINE_SECONDS * 1e9
        event, byte = (max(cost, default=0) for cost in ((c.event for c in costs), (c.byte for c in costs)))
        return event / nanoseconds, byte / nanoseconds

    @cached_property
    def _tenant_names(self) -> tuple[str | None, ...]:
        return (None, self.scope.tenant.slug, str(self.scope.tenant.tenant_id))

    def payload(self, payload: bytes, *, plain: bool = False) -> Event | Refusal:
        """Validate an event as it was received; `plain` as for `event`."""
        if (rejected := self.undecodable(payload)) is not None:
            return refusal(heading(payload), rejected)
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            return Refusal(Rejected(Reason.UNDECODABLE, f"not JSON: {clearer(payload, error)}"))
        return self.event(event, payload, plain=plain)

    def undecodable(self, payload: bytes) -> Rejected | None:
        """The rejection of a payload that is too large or too deep to be decoded; else None."""
        limits = self.limits
        if len(payload) > limits.max_bytes:
            detail = f"{len(payload):,} bytes, the limit is {limits.max_bytes:,}"
            return Rejected(Reason.OVERSIZE, detail)
        # Decoders recurse, so depth is counted first; few brackets cannot nest too deep.
        depth = limits.max_depth
        if payload.count(b"{") + payload.count(b"[") > depth and nesting(payload) > depth:
            return Rejected(Reason.TOO_DEEP, f"nested deeper than {depth} levels")
        return None

    def event(self, event: Any, payload: bytes, *, plain: bool = False) -> Event | Refusal:
        """Validate a decoded event.

        Args:
            payload: what it was decoded from.
            plain: whether the payload is known not to be `suspicious`.
        """
        rejected = self._envelope(event)
        if rejected is None and not plain and suspicious(payload):
            rejected = unstorable(payload)
        if rejected is None:
            target = self.targets[event["dataset"]]
            check = target.checks.get(event.get("schema_version"))
            if check is None:
                detail = f"the dataset has no schema version {event['schema_version']}"
                rejected = Rejected(Reason.UNKNOWN_SCHEMA_VERSION, detail, "/schema_version")
            elif target.of_entities and (deleted := entities.deletion(event)):
                if deleted is True:  # a deletion has no content to validate
                    return event  # type: ignore[no-any-return]
                rejected = deleted
            else:
                if len(payload) <= check.quick:
                    rejected = None if check.is_valid(event["data"]) else _violated(check, event)
                else:
                    rejected = self._measured(check, event, payload)
                if rejected is None:
                    return event  # type: ignore[no-any-return]
        return refusal(event, rejected)

    def _measured(self, check: Check, event: Event, payload: bytes) -> Rejected | None:
        """Validate an event that may take long by its schema, and charge the time to the budget."""
        limits, budget = self.limits, self.budget
        if budget.exhausted:
            return Rejected(
                Reason.TOO_EXPENSIVE,
                f"judging the events before it took {budget.seconds:g} s beyond their share, and it may take "
                "long, too: replay it",
                "/data",
            )
        if len(payload) <= check.largest:
            began = time.thread_time()
            rejected = _violated(check, event)
            seconds = time.thread_time() - began
        else:
            memory = limits.validation_memory_bytes
            rejected, seconds = validator_pool().rejected(
                check.document, payload, limits.validation_seconds, memory
            )
        budget.charge(seconds, len(payload))
        return rejected

    def _envelope(self, event: Any) -> Rejected | None:
        if type(event) is not dict:
            return Rejected(Reason.INVALID_ENVELOPE, "the event is not a JSON object", "")
        get = event.get
        if get("tenant") not in self._tenant_names:
            return Rejected(Reason.WRONG_TENANT, "the event names another tenant", "/tenant")
        dataset = get("dataset")
        if type(dataset) is not str or not dataset:
            return Rejected(Reason.MISSING_DATASET, "dataset is missing or not a string", "/dataset")
        if "\0" in dataset:  # no dataset can have such a name, so that it cannot be created
            return Rejected(Reason.NUL_CHARACTER, "a NUL character cannot be stored", "/dataset")
        if dataset not in self.targets:
            detail = f"the tenant has no dataset {dataset[:100]!r}"
            if near := self._slugs.nearest(dataset):
                detail += f": is it {near}?"
            if dataset in self.scope.elsewhere:
                detail = f"{dataset!r} holds entities: send them with POST /v1/datasets/{dataset}/entities"
            return Rejected(Reason.UNKNOWN_DATASET, detail, "/dataset")
        event_id = get("event_id")
        if type(event_id) is not str or not 0 < len(event_id.encode()) <= MAX_ID_BYTES:
            detail = f"event_id must be a string of 1 to {MAX_ID_BYTES} bytes"
            return Rejected(Reason.INVALID_ENVELOPE, detail, "/event_id")
        if type(get("timestamp")) is not str:
            return Rejected(Reason.INVALID_TIMESTAMP, "timestamp is missing or not a string", "/timestamp")
        if type(get("data")) is not dict:
            return Rejected(Reason.INVALID_ENVELOPE, "data is missing or not an object", "/data")
        trace_id = get("trace_id")
        if trace_id is not None and type(trace_id) is not str:
            return Rejected(Reason.INVALID_ENVELOPE, "trace_id is not a string", "/trace_id")
        version = get("schema_version")
        if version is not None and type(version) is not int:
            return Rejected(Reason.INVALID_ENVELOPE, "schema_version is not an integer", "/schema_version")
        return None


def _violated(check: Check, event: Event) -> Rejected | None:
    if (violated := violation(check.document, event["data"])) is None:
        return None
    pointer, message = violated
    return Rejected(Reason.SCHEMA_VIOLATION, message[:2000], f"/data{pointer}")


def refusal(event: Any, rejected: Rejected) -> Refusal:
    """A refusal with the dataset and id of the event, as far as they can be stored."""
    names: list[str | None] = [None, None]
    if type(event) is dict:
        for index, key in enumerate(("dataset", "event_id")):
            value = event.get(key)
            if type(value) is str and "\0" not in value:
                names[index] = value[:MAX_ID_BYTES]
    return Refusal(rejected, names[0], names[1])
