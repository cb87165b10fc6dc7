"""Numbers of schemas: an event is compared with the number that was written, or that one is refused."""

import operator
from fractions import Fraction

import orjson
import pytest

from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.schema import check_document, compiled
from pulse_resources.errors import UserError

COMPARISONS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
BOUNDS = [f"{sign}{2**power + more}" for power in (53, 63) for more in (-2, -1, 0, 1) for sign in ("", "-")]
VALUES = [str(2**63 - 1), str(-(2**63)), str(2**53 + 1), "0.1", "9007199254740992.0", "1e300"]


def document(keyword: str, number: str) -> str:
    return f'{{"type": "object", "properties": {{"a": {{"{keyword}": {number}}}}}}}'


def refusal(text: str) -> str | None:
    try:
        check_document(text, Bound())
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("keyword", COMPARISONS)
def test_a_number_is_compared_with_the_bound_that_was_written_or_the_bound_is_refused(keyword: str) -> None:
    accepted = 0
    rounded = ("18446744073709551617", "0.10000000000000000001")
    for bound in (*BOUNDS, *(f"{bound}.0" for bound in BOUNDS), *rounded):
        if (why := refusal(document(keyword, bound))) is not None:
            assert why.startswith(f"{bound} at #/properties/a/{keyword} would be compared as ")
            continue
        accepted += 1
        is_valid = compiled(document(keyword, bound)).is_valid
        for value in VALUES:
            data = orjson.loads(f'{{"a": {value}}}')
            expected = COMPARISONS[keyword](Fraction(value), Fraction(bound))
            assert is_valid(data) == expected, (bound, value)
    assert accepted > len(BOUNDS)


@pytest.mark.parametrize(
    ("keyword", "number"),
    [
        ("multipleOf", "0.10000000000000000001"),
        ("const", "0.10000000000000000001"),
        ("enum", '[1, {"x": [36893488147419103233]}]'),
    ],
)
def test_an_option_that_would_be_rounded_is_refused(keyword: str, number: str) -> None:
    with pytest.raises(UserError, match=f"at #/properties/a/{keyword} would be compared as") as refused:
        check_document(document(keyword, number), Bound())
    assert refused.value.fix
    check_document(document(keyword, number))  # published before


def test_digits_of_other_members_are_left_alone() -> None:
    check_document(document("default", "0.10000000000000000001"), Bound())
    check_document(document("enum", "[9223372036854775807, 0.1, 1e300, 18446744073709551615, true]"), Bound())
