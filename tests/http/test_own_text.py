"""An event that collect keeps as a dead letter is kept as it was sent, in whichever form."""

import json
import pickle
from dataclasses import replace

import pytest
from support.conform import TENANT, dataset

from pulse_api.http.collect import split as splitting, values
from pulse_api.http.collect.split import split
from pulse_api.http.collect.verdicts import Validation
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.validation.validator import Validator

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
JUDGE = Validator(Scope(TENANT, (replace(dataset(SCHEMA), on_invalid=OnInvalid.DEAD_LETTER),)), UNLIMITED)
HEAD = '"event_id": "e", "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z"'
RIGHT = f'{{{HEAD}, "data": {{"n": 1}}}}'
WRONG = f'{{ {HEAD},\n "more": 1, "more": [1.50, "],["],\t"data": {{"n": 1, "n": "\\u00e4"}} }}'
FORMS = {
    "one": WRONG,
    "array": f"[{RIGHT} , {WRONG},{RIGHT}]",
    "array of long numbers": f"[{RIGHT} , {WRONG},{RIGHT.replace('1}', '1.00}')}]",
    "array with white space": f" [\n{WRONG}\n]\n",
    "large array": f"[{RIGHT},{WRONG}{' ' * splitting.LARGE_BYTES}]",
}


def outgoing(body: str) -> list[bytes]:
    items = split(
        body.encode(), {}, max_events=100, max_values=10_000, max_depth=100, max_bytes=splitting.LARGE_BYTES
    )
    validation = pickle.loads(pickle.dumps(Validation(items)))  # noqa: S301 - a worker process gets it so
    while not validation.done:
        validation.go_on(JUDGE)
    verdicts = validation.verdicts()
    assert verdicts.dead_lettered == 1
    return [event.payload for event in verdicts.outgoing]


@pytest.mark.parametrize("form", FORMS)
def test_a_dead_letter_has_the_sent_bytes(form: str) -> None:
    payloads = outgoing(FORMS[form])
    assert WRONG.encode() in payloads
    assert len(payloads) == FORMS[form].count('"event_id"')


def test_only_a_dead_letter_s_text_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small array it costs more than to judge its events."""
    bodies = []
    elements = values.elements

    def note(body: bytes, most: int) -> list[bytes] | None:
        bodies.append(body)
        return elements(body, most)

    monkeypatch.setattr(values, "elements", note)
    items = split(f"[{RIGHT}]".encode(), {}, max_events=9, max_values=99, max_depth=9, max_bytes=999)
    Validation(items).go_on(JUDGE)
    assert bodies == []
    twice = WRONG.replace('"e"', '"f"')
    items = split(f"[{WRONG},{twice}]".encode(), {}, max_events=9, max_values=99, max_depth=9, max_bytes=999)
    validation = Validation(items)
    validation.go_on(JUDGE)
    assert [event.payload.decode() for event in validation.verdicts().outgoing] == [WRONG, twice]
    assert len(bodies) == 1


def test_a_text_beyond_the_limit_of_an_event_is_written_without_its_spaces() -> None:
    judge = Validator(JUDGE.scope, replace(UNLIMITED, max_bytes=500))
    body = f"[{WRONG.replace('{ ', '{' + ' ' * 600)}]".encode()
    validation = Validation(split(body, {}, max_events=9, max_values=99, max_depth=9, max_bytes=500))
    validation.go_on(judge)
    (event,) = validation.verdicts().outgoing
    assert json.loads(event.payload) == json.loads(WRONG)
    assert len(event.payload) < 500
