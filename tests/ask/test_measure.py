"""The tool `measure`: what it takes to be asked, without running it; and the errors of tools."""

from types import SimpleNamespace
from typing import Any

import pytest

from pulse_api.http import mcp
from pulse_api.http.problems import ProblemError
from pulse_api.mcp import queries
from pulse_api.mcp.arguments import MeasureArguments
from pulse_pipelines.ask import meaning, write
from pulse_pipelines.domain.schemas.columns import columns
from pulse_resources.errors import UserError

TYPES = {"country": "string", "amount": "number", "items": "integer"}
DOCUMENT = {"type": "object", "properties": {name: {"type": kind} for name, kind in TYPES.items()}}
TYPED = [(column.field, column.name, column.type) for column in columns(DOCUMENT)]


def sql(*, of_entities: bool = False, **more: Any) -> str:
    described = meaning.of_schema("orders", DOCUMENT, TYPED, of_entities=of_entities)
    arguments = {"dataset": "orders", "measures": [{"aggregation": "count"}]} | more
    return write.sql(queries._plan(described, MeasureArguments.model_validate(arguments)))


@pytest.mark.parametrize("more", [{"grain": "day"}, {"start": "2026-01-01T00:00:00Z"}])
def test_entities_have_no_time(more: dict[str, Any]) -> None:
    """The time of an entity's newest version is not when it was."""
    assert "GROUP BY" in sql(of_entities=True, by=["country"])
    assert "timestamp" in sql(**more)
    with pytest.raises(UserError, match="as they are now"):
        sql(of_entities=True, **more)


def test_a_moment_keeps_its_fraction() -> None:
    assert "2026-01-01 00:00:00.500000+00" in sql(start="2026-01-01T01:00:00.5+01:00")


@pytest.mark.parametrize(
    ("column", "value", "literal"),
    [
        ("items", "9007199254740993.5", "9007199254740993.5"),
        ("items", 1.5, "1.5"),
        ("amount", "0.9366088668340495", "0.9366088668340495e0"),
        ("amount", 0.9366088668340495, "0.9366088668340495e0"),
        ("amount", 1e-7, "0.0000001"),
        ("amount", 3.572079e-19, "0.0000000000000000003572079e0"),
        ("items", 2**53 + 1, "9007199254740993"),
        ("country", "1.5", "'1.5'"),
    ],
)
def test_a_number_is_compared_with_the_type_of_its_column(column: str, value: Any, literal: str) -> None:
    """DuckDB would round the text of a number to an integer, and a decimal of 16 digits to another double."""
    filters = [{"column": column, "operator": ">", "values": [value]}]
    assert sql(filters=filters).endswith(f'WHERE "{column}" > {literal}')


@pytest.mark.parametrize("value", ["abc", "", "NaN", "1,5", "0x10", "1e999999999"])
def test_a_filter_with_text_on_a_number_column_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="amount has numbers, and"):
        sql(filters=[{"column": "amount", "operator": "=", "values": [value]}])


def test_a_filter_with_a_number_on_a_text_column_is_refused() -> None:
    """DuckDB would compare the texts as numbers: 5 with 05, and fail at all others."""
    with pytest.raises(UserError, match="country has texts, and 5 is none"):
        sql(filters=[{"column": "country", "operator": "=", "values": [5]}])


def test_a_tool_error_contains_retry_after_and_request_id() -> None:
    context: Any = SimpleNamespace(request=SimpleNamespace(state=SimpleNamespace(request_id="r-1")))
    fix, headers = "Repeat this request after Retry-After", {"Retry-After": "3"}
    slow = mcp._explained(context, ProblemError(429, "rate-exceeded", "too many", fix=fix, headers=headers))
    assert (slow.fix, slow.where) == ("Repeat this request after 3 s", {"retry_after_seconds": "3"})
    assert mcp._explained(context, ValueError("unexpected")).where == {"request_id": "r-1"}
