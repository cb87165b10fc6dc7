"""Examination of a JSON Schema: its columns, and the most time that validating an event can take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulse_pipelines.domain.schemas.columns import Column, columns
from pulse_pipelines.domain.schemas.cost import Bound, cost
from pulse_pipelines.domain.schemas.schema import check_document


@dataclass(frozen=True)
class Examination:
    document: Mapping[str, Any]
    """The parsed schema."""
    columns: Sequence[Column]
    largest_event_seconds: float
    """To validate an event of the most bytes that are accepted, whatever it contains."""


def examine(document: str, bound: Bound) -> Examination:
    """Examine a JSON Schema as publishing does. Raises UserError: it cannot be published."""
    checked = check_document(document, bound)
    return Examination(checked, columns(checked), cost(checked, bound.max_bytes).seconds(bound.max_bytes))
