"""Numbers of results: what was written is read and written again with the same digits."""

from dataclasses import dataclass
from decimal import Decimal

import orjson
import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.domain.json_values import (
    Number,
    decoded,
    encoded,
    exact,
    rounds,
    stored,
    with_text_ids,
    written,
)

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
def test_any_number_survives_decoding_and_encoding(number: Decimal | int | float) -> None:
    written = encoded([number]) if isinstance(number, Decimal | float) else f"[{number}]".encode()
    assert encoded(decoded(written)) == written


def test_numbers_that_json_lacks_are_null() -> None:
    actual = encoded([float("nan"), float("inf"), Decimal("NaN"), Decimal("-Infinity"), b"\0"])
    assert actual == b'[null,null,null,null,"AA=="]'


@dataclass
class Snapshot:
    snapshot_id: int
    rows: int


def test_ids_of_snapshots_are_text() -> None:
    actual = with_text_ids(
        vars(Snapshot(2**62 + 1, 3)) | {"parent_id": None, "snapshots": {"a": 2**60, "b": None}}
    )
    assert actual == {
        "snapshot_id": str(2**62 + 1),
        "rows": 3,
        "parent_id": None,
        "snapshots": {"a": str(2**60), "b": None},
    }
    assert with_text_ids({"snapshots": 3}) == {"snapshots": 3}, "a count"


TEXTS = st.from_regex(r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@pytest.mark.parametrize(
    "digits", [*EXACT[2:4], "1.10", "-1.50", "1E5", "1e-400", "10.00", "1234567890123456.5"]
)
def test_a_value_keeps_its_text(digits: str) -> None:
    for text in (f'{{"a":[{digits},0.5]}}', f"[{digits}]", digits):
        assert written(stored(text)).decode() == text


@given(TEXTS)
def test_a_double_rounds_a_value_or_does_not(digits: str) -> None:
    """As decimals say, which are exact."""
    number = exact(f"[{digits}]")[0]
    if isinstance(number, int):
        return
    is_exact = not isinstance(number, Number) or number.is_exact
    assert is_exact == (Decimal(repr(float(digits))) == Decimal(digits))
    assert is_exact or rounds(f'{{"a":{digits}}}'.encode())
    assert written(stored(f"[{digits}]")).decode() == written([number]).decode() == f"[{digits}]"


@given(TEXTS, st.integers(-2, 2))
def test_texts_of_one_value_are_one(digits: str, power: int) -> None:
    def canonical(text: str) -> str:
        number = Number(text)
        number.text = text
        return number.canonical

    sign, figures, exponent = Decimal(digits).as_tuple()
    other = Decimal((sign, figures, int(exponent) + power))
    assert canonical(f"{other:f}") == canonical(f"{Decimal(digits):f}e{power}") == canonical(str(other))
    assert (canonical(digits) == canonical(f"{other:f}")) == (Decimal(digits) == other)
