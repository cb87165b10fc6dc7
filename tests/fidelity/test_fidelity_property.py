"""Values beyond the zoo: what an event has is what its row has, in memory, and in JSON again."""

import json

import pyarrow as pa
from hypothesis import given, strategies as st
from support.conform import TENANT, dataset, messages

from fidelity import readings
from fidelity.known import Cell, change
from fidelity.zoo import PROPERTIES, Value
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.query.formats import to_json

DATASET = dataset({"type": "object", "properties": dict(PROPERTIES)})
"""Of whose properties the name is the kind."""
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
_NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=20, min_value=-(10**6), max_value=10**6).map(
        str
    ),
)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)
_MEMBERS = st.one_of(
    st.tuples(st.just("text"), _TEXT.map(json.dumps)),
    st.tuples(st.just("number"), _NUMBERS),
    st.tuples(st.just("integer"), st.integers(-(2**63), 2**63 - 1).map(str)),
    st.tuples(st.just("day"), st.dates().map(lambda day: f'"{day.isoformat()}"')),
    st.tuples(
        st.just("moment"),
        st.datetimes().map(lambda moment: f'"{moment.isoformat()}Z"'),
    ),
    st.tuples(_TEXT.filter(lambda name: name not in PROPERTIES), _JSON.map(json.dumps)),
    st.tuples(st.just("other"), _NUMBERS),
)


@given(st.lists(_MEMBERS, min_size=1, max_size=8))
def test_the_data_of_a_row_are_those_of_its_event(members: list[tuple[str, str]]) -> None:
    payloads = [
        f'{{"event_id": "{number}", "dataset": "orders", "timestamp": "2023-11-14T22:00:00Z",'
        f' "data": {{{json.dumps(name)}: {text}}}}}'.encode()
        for number, (name, text) in enumerate(members)
    ]
    scope = Scope(TENANT, (DATASET,))
    conformed = TopicConformer(scope, "batch", UNLIMITED).chunk(messages(payloads))
    assert not conformed.dead_letters
    rows: pa.Table = conformed.tables["orders"]
    decoded = readings.parsed(to_json(rows.drop_columns(["_raw"])))["rows"]
    for row, decoded_row, (name, text) in zip(rows.to_pylist(), decoded, members, strict=True):
        kind = name if name in PROPERTIES else "any"
        value = Value(kind, name, json.dumps(name), text)
        sent = readings.parsed(f"{{{value.member}: {text}}}")
        for reading in (row, decoded_row):
            cell = Cell(value, "column", "kafka", "memory", sent, readings.data(reading, DATASET.columns))
            assert change(cell) is not None, (text, cell.came)
