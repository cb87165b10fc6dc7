"""The context of an event has each value as an undeclared property has it, whatever else its batch has."""

import pytest
from support.conform import TENANT, dataset, messages

from fidelity import readings, record
from fidelity.known import Cell
from fidelity.lake_of_values import encoded
from fidelity.zoo import PROPERTIES, ZOO
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.ingest.conform import TopicConformer

SCOPE = Scope(TENANT, (dataset({"type": "object", "properties": dict(PROPERTIES)}),))
"""Whose events are decoded in one pass."""
VALUES = {str(number): value for number, value in enumerate(ZOO)}


@pytest.mark.parametrize("form", ["{{{}: {}}}", "[{}, {}]"], ids=["object", "list"])
def test_each_value_of_a_context_is_exact_or_refused(form: str) -> None:
    contexts = {key: form.format(value.member, value.text) for key, value in VALUES.items()}
    payloads = [
        encoded(
            f'{{"event_id": "{key}", "dataset": "orders", "timestamp": "2023-11-14T22:00:00Z",'
            f' "data": {{}}, "context": {context}}}'
        )
        for key, context in contexts.items()
    ]
    conformed = TopicConformer(SCOPE, "batch", UNLIMITED).chunk(messages(payloads))
    refused = {bytes(letter.message.payload) for letter in conformed.dead_letters}
    received = {row["id"]: readings.parsed(row["context"]) for row in conformed.tables["orders"].to_pylist()}
    assert len(received) + len(refused) == len(VALUES)
    cells = {
        key: Cell(VALUES[key], "context", "kafka", "memory", readings.parsed(contexts[key]), value)
        for key, value in received.items()
    }
    changes = record.explained(cells)
    assert {key for keys in changes.values() for key, _ in keys.values()} <= {"minus", "last"}
    for key, payload in zip(VALUES, payloads, strict=True):
        assert (key in received) != (payload in refused)
