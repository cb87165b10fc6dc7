"""What an entity is, and when two versions of it are the same."""

from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.domain import entities
from pulse_pipelines.domain.event import Rejected, heading

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(SCALARS, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=10)


@pytest.mark.parametrize(
    ("sent", "canonical"),
    [
        (b'{"b": 1, "a": [1.0, 1e0, -0.0, 1.50]}', b'{"a":[1,1,0,1.5],"b":1}'),
        (b'{"a": {"z": "\\u00e9", "y": null}}', '{"a":{"y":null,"z":"é"}}'.encode()),
        (b'{"a": 9007199254740993}', b'{"a":9007199254740993}'),
        (b'{"a": 9007199254740992.0}', b'{"a":9007199254740992.0}'),
        (b'{"a": [1e-5, 0.000001, 1.5e-6, 5e-324]}', b'{"a":[0.00001,1e-6,1.5e-6,5e-324]}'),
        (b'{"a": [9999999999999998.0, 15000000000000000.0]}', b'{"a":[9999999999999998.0,1.5e+16]}'),
    ],
)
def test_the_canonical_form(sent: bytes, canonical: bytes) -> None:
    assert entities.canonical(orjson.loads(sent)) == canonical


def test_the_content_hash_is_the_documented_one() -> None:
    """As anybody can compute it: b2sum -l 128 of the canonical form."""
    canonical = entities.canonical({"name": "Germany"})
    assert entities.content_hash(canonical) == "ea4d9b1f1d7693a24bdda19a6dae16b3"


@given(st.dictionaries(st.text(), VALUES), st.randoms())
def test_order_and_white_space_do_not_change_the_canonical_form(content: dict[str, Any], random: Any) -> None:
    names = list(content)
    random.shuffle(names)
    other = orjson.loads(orjson.dumps({name: content[name] for name in names}, option=orjson.OPT_INDENT_2))
    assert entities.canonical(other) == entities.canonical(orjson.loads(orjson.dumps(content)))


def test_members_with_an_underscore_are_not_part_of_the_entity() -> None:
    sent = {"_id": "a", "_deleted": False, "_updated": 7, "name": "x", "inner": {"_kept": 1}}
    assert entities.event(sent, "things", "now") == {
        "event_id": "a",
        "dataset": "things",
        "timestamp": "now",
        "data": {"name": "x", "inner": {"_kept": 1}},
        "deleted": False,
    }


@pytest.mark.parametrize(("flag", "means"), [(None, False), (False, False), (True, True)])
def test_a_deletion_is_a_truth_value(flag: object, means: bool) -> None:
    assert entities.deletion({"deleted": flag}) is means
    assert entities.deletion({}) is False
    assert isinstance(entities.deletion({"deleted": "true"}), Rejected)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (
            b'{"event_id":"N\\u00fc\\"1","dataset":"planes","data":{',
            {"event_id": 'N\u00fc"1', "dataset": "planes"},
        ),
        (b' { "event_id" : "1", "dataset" : "planes" , "x', {"event_id": "1", "dataset": "planes"}),
        (b'{"dataset":"planes","event_id":"1"}', None),
        (b'{"event_id":1,"dataset":"planes"}', None),
        (b'{"event_id":"1","dataset":"pl/anes"}', None),
        (b'{"event_id":"\\ud800\xff","dataset":"planes"}', None),
        (b'{"event_id":"\n","dataset":"planes"}', None),
        (b'{"event_id":"' + b"x" * 3_000 + b'","dataset":"planes"}', None),
        (b'{"event_id":"' + b"\\" * 100_000, None),
    ],
)
def test_the_heading_of_an_event_that_is_not_decoded(payload: bytes, expected: dict[str, str] | None) -> None:
    assert heading(payload) == expected
