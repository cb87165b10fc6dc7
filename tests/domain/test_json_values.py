"""Numbers of results: what was written is read and written again with the same digits."""

from dataclasses import dataclass
from decimal import Decimal

import orjson
import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.domain.json_values import decoded, encoded, with_text_ids

EXACT = [
    "27670116110564327421",
    "-170141183460469231731687303715884105728",
    "0.12345678901234567890",
    "1.10000000000000000000",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "0.1",
    "-0.0",
    "1e300",
    "0.00000000000000000000",
]


@pytest.mark.parametrize("digits", EXACT)
def test_a_number_keeps_its_digits(digits: str) -> None:
    content = f'{{"rows":[{{"v":{digits},"deep":[[{digits}]]}}]}}'.encode()
    again = encoded(decoded(content))
    assert orjson.loads(again) == orjson.loads(content)
    assert again.count(digits.encode()) == 2 or digits == "1e300", again


@given(
    st.one_of(st.decimals(allow_nan=False, allow_infinity=False), st.integers(), st.floats(allow_nan=False))
)
def test_any_number_comes_back(number: Decimal | int | float) -> None:
    written = encoded([number]) if isinstance(number, Decimal | float) else f"[{number}]".encode()
    assert encoded(decoded(written)) == written


def test_what_json_lacks_is_null() -> None:
    found = encoded([float("nan"), float("inf"), Decimal("NaN"), Decimal("-Infinity"), b"\0"])
    assert found == b'[null,null,null,null,"AA=="]'


@dataclass
class Snapshot:
    snapshot_id: int
    rows: int


def test_ids_of_snapshots_are_text() -> None:
    found = with_text_ids(
        vars(Snapshot(2**62 + 1, 3)) | {"parent_id": None, "snapshots": {"a": 2**60, "b": None}}
    )
    assert found == {
        "snapshot_id": str(2**62 + 1),
        "rows": 3,
        "parent_id": None,
        "snapshots": {"a": str(2**60), "b": None},
    }
    assert with_text_ids({"snapshots": 3}) == {"snapshots": 3}, "a count"
