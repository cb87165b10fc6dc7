"""Revalidation: whether dead letters could land now, by the current datasets, claims and tables.

It uses the validator and the column typing of ingestion. An event that passes is validated again, and looked
up by the dedup gate, when the next batch drains it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import orjson

from pulse_pipelines import registry
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.dead_letters.letters import DeadLetter, Opened
from pulse_pipelines.dead_letters.verdicts import DeadLetterOutcome, Verdict
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event import Rejected, suspicious, unstorable
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.conform import Conformed, TopicConformer
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.limits import event_limits
from pulse_pipelines.validation.validator import Validator
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Terminal, Transient
from pulse_resources.iceberg import readable


@dataclass(frozen=True)
class Revalidated:
    """A letter's verdict, and the bytes to publish where it can land."""

    letter: DeadLetter
    verdict: Verdict
    payload: bytes


class Revalidation:
    """Validates dead letters of one tenant, page by page.

    Of several letters with one event id only the first can land: the others are duplicates.

    Args:
        schema_version: of the events' datasets; written to each event before it is validated.
    """

    def __init__(self, tenant: Tenant, schema_version: int | None = None) -> None:
        limits = event_limits()
        self.max_bytes = limits.max_bytes
        scope = Scope(tenant, tuple(registry.list_datasets(tenant)))
        self._tenant = tenant
        self._version = schema_version
        self._validator = Validator(scope, limits)
        self._conformer = TopicConformer(scope, "replay", limits)
        self._datasets = {dataset.slug: dataset for dataset in scope.datasets}
        self._tables: dict[str, str | None] = {}
        self._passed: set[tuple[str, str]] = set()

    def validate(self, connection: postgres.Connection, page: Sequence[Opened]) -> list[Revalidated]:
        """Validate a page; verdicts are would_land, duplicate or rejected, in the order of the page.

        Args:
            connection: in the tenant's session, as pulse_api.

        Raises:
            Transient: the object store did not say whether a dataset's table can be read.
        """
        verdicts: dict[tuple[int, int], Verdict] = {}
        payloads = []
        for letter, payload in page:
            if letter.reason == Reason.PROCESSING_FAILED and letter.size <= self.max_bytes:
                # Validating it may kill this process: ingestion tries it, and isolates it again.
                verdicts[_place(letter)] = Verdict(
                    letter.letter_id, DeadLetterOutcome.WOULD_LAND, letter.dataset, letter.event_id
                )
                payloads.append(payload)
            else:
                payloads.append(self._versioned(payload))
        messages = []
        received_ms = int(time.time() * 1000)  # an event that passes is appended to the topic about now
        for (letter, _), payload in zip(page, payloads, strict=True):
            if _place(letter) in verdicts:
                continue
            if letter.size > self.max_bytes:  # its payload was not loaded
                detail = f"{letter.size:,} bytes, the limit is {self.max_bytes:,}"
                verdicts[_place(letter)] = _rejected(letter, Rejected(Reason.OVERSIZE, detail))
            else:
                messages.append(Message(letter.partition, letter.offset, received_ms, payload))
        conformed = self._conformer.chunk(messages)
        letters = {_place(letter): letter for letter, _ in page}
        for dead in conformed.dead_letters:
            place = (dead.message.partition, dead.message.offset)
            verdicts[place] = _rejected(letters[place], dead.rejected)
        passed = _passed(conformed)
        claimed = self._claimed(passed.values())
        for letter, _ in page:
            if (event := passed.get(_place(letter))) is not None:
                verdicts[_place(letter)] = self._verdict(connection, letter, *event, claimed)
        return [
            Revalidated(letter, verdicts[_place(letter)], payload)
            for (letter, _), payload in zip(page, payloads, strict=True)
        ]

    def _verdict(
        self,
        connection: postgres.Connection,
        letter: DeadLetter,
        slug: str,
        event_id: str,
        claimed: set[tuple[str, str]],
    ) -> Verdict:
        outcome = DeadLetterOutcome.WOULD_LAND
        if (slug, event_id) in claimed or (slug, event_id) in self._passed:
            outcome = DeadLetterOutcome.DUPLICATE
        elif (problem := self._table_problem(connection, slug)) is not None:
            return _rejected(letter, Rejected(Reason.LANDING_FAILED, problem))
        else:
            self._passed.add((slug, event_id))
        return Verdict(letter.letter_id, outcome, slug, event_id)

    def _versioned(self, payload: bytes) -> bytes:
        """The event with the requested schema version, if any.

        A payload that does not decode, or loses something by it, is left as it is for the validator.
        """
        if self._version is None or self._validator.undecodable(payload) is not None:
            return payload
        try:
            event = orjson.loads(payload)
            event = json_values.exact(payload)  # which recurses: the other has bounded the depth
        except ValueError:
            return payload
        if type(event) is not dict or (suspicious(payload) and unstorable(payload) is not None):
            return payload
        return json_values.written(event | {"schema_version": self._version})

    def _claimed(self, events: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        ids: dict[str, list[str]] = defaultdict(list)
        for slug, event_id in events:
            ids[slug].append(event_id)
        if not ids:
            return set()
        with postgres.tenant_transaction(
            "pulse_pipeline", self._tenant.tenant_id, one_snapshot=True
        ) as connection:
            return {
                (slug, event_id)
                for slug, slug_ids in ids.items()
                for event_id in claim_runs.claimed_ids(connection, self._datasets[slug], slug_ids)
            }

    def _table_problem(self, connection: postgres.Connection, slug: str) -> str | None:
        """Why the dataset's table cannot take rows; None if it can."""
        if slug not in self._tables:
            name = (self._tenant.namespace, slug)
            try:
                read_location = partial(iceberg.current_location, connection, name)
                readable.as_it_is(partial(iceberg.load_table, name), read_location(), read_location, str)
                self._tables[slug] = None
            except Terminal as error:
                self._tables[slug] = str(error)
            except OSError as error:
                raise Transient(
                    f"the object store does not answer: {error}", tenant=self._tenant.slug, dataset=slug
                ) from error
        return self._tables[slug]


def _passed(conformed: Conformed) -> dict[tuple[int, int], tuple[str, str]]:
    """Dataset and event id of the events that can land, by partition and offset."""
    payloads = {}
    for slug, table in conformed.tables.items():
        places = zip(
            *(table.column(name).to_pylist() for name in ("_kafka_partition", "_offset")), strict=True
        )
        for place, event_id in zip(places, table.column("id").to_pylist(), strict=True):
            payloads[place] = (slug, event_id)
    return payloads


def _place(letter: DeadLetter) -> tuple[int, int]:
    return letter.partition, letter.offset


def _rejected(letter: DeadLetter, rejected: Rejected) -> Verdict:
    return Verdict(
        letter.letter_id,
        DeadLetterOutcome.REJECTED,
        letter.dataset,
        letter.event_id,
        rejected.reason.value,
        rejected.pointer,
        rejected.detail,
    )
