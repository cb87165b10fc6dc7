"""Validation of stored rows by the package `jsonschema`, an implementation that ingestion does not share.

It is slow where schemas are hostile: patterns backtrack, and equal items are searched pair by pair. So these
keywords take linear time here, and the deadline is looked at before each keyword.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson
from jsonschema import ValidationError, validators
from jsonschema.exceptions import UnknownType
from jsonschema.protocols import Validator
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable

from pulse_pipelines.domain.event import json_pointer
from pulse_pipelines.domain.schemas.patterns import LINEAR
from pulse_pipelines.domain.schemas.unique_items import UniqueItems

LARGEST = 65_536
"""Maximum bytes of a schema, and of an event's data, that are judged here."""
Keyword = Callable[[Validator, Any, Any, Mapping[str, Any]], Iterator[ValidationError] | None]


class NotJudgedError(Exception):
    """The package cannot judge a value by a schema, or not in time."""


class ReferenceValidator:
    """Validates data by published schemas.

    Args:
        seconds: from now on, in which values are judged.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._compiled: dict[str, Validator] = {}

    def find_violation(self, document: str, data: Any) -> str | None:
        """JSON pointer of the first violation of a published schema, "" for `data` itself; None if valid.

        Raises:
            NotJudgedError: the schema or the data is too large or too deep, or the time is over.
        """
        try:
            if max(len(document), len(json.dumps(data, default=str))) > LARGEST:
                raise NotJudgedError("the schema or the data is too large")
            if document not in self._compiled:
                self._compiled[document] = self._compile(orjson.loads(document))
            error = next(iter(self._compiled[document].iter_errors(data)), None)
        except (RecursionError, Unresolvable, UnknownType, ValueError) as unable:
            raise NotJudgedError(str(unable)) from unable
        return None if error is None else json_pointer(list(error.absolute_path))

    def _compile(self, document: Mapping[str, Any]) -> Validator:
        written = orjson.dumps(document)
        if b'"unevaluatedProperties"' in written and b'"patternProperties"' in written:
            raise NotJudgedError("the package would match these patterns by backtracking")
        draft = validators.validator_for(document)
        keywords = {name: self._timed(_LINEAR.get(name, check)) for name, check in draft.VALIDATORS.items()}
        return validators.extend(draft, keywords)(document, registry=REGISTRY)

    def _timed(self, check: Keyword) -> Keyword:
        def timed(validator: Validator, value: Any, data: Any, schema: Mapping[str, Any]) -> Any:
            if time.monotonic() > self._end:
                raise NotJudgedError("the time is over")
            return check(validator, value, data, schema)

        return timed


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], bool]:
    """Raises ValueError for a pattern that cannot match in linear time."""
    matches: Callable[[str], bool] = jsonschema_rs.validator_for(
        {"pattern": pattern}, pattern_options=LINEAR
    ).is_valid
    return matches


def _pattern(_: Validator, pattern: str, data: Any, schema: object) -> Iterator[ValidationError]:
    if isinstance(data, str) and not _matcher(pattern)(data):
        yield ValidationError("the text does not match the pattern")


def _pattern_properties(
    validator: Validator, patterns: Mapping[str, Any], data: Any, schema: object
) -> Iterator[ValidationError]:
    if isinstance(data, dict):
        for pattern, subschema in patterns.items():
            for name in filter(_matcher(pattern), data):
                yield from validator.descend(data[name], subschema, path=name)


def _additional_properties(
    validator: Validator, allowed: Any, data: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(data, dict):
        declared, matchers = schema.get("properties", {}), map(_matcher, schema.get("patternProperties", {}))
        declared_names = {name for matches in matchers for name in filter(matches, data)}.union(declared)
        for name in data.keys() - declared_names:
            if allowed is False:
                yield ValidationError("there is a property that may not be there")
            else:
                yield from validator.descend(data[name], allowed, path=name)


def _unique_items(_: Validator, enabled: bool, data: Any, schema: object) -> Iterator[ValidationError]:
    try:
        UniqueItems(None, enabled, None).validate(data)
    except ValueError as equal:
        yield ValidationError(str(equal))


def _multiple_of(
    _: Validator, divisor: float | Decimal, data: Any, schema: object
) -> Iterator[ValidationError]:
    """Divide numbers as they are written: for the package, which divides doubles, 0.3 / 0.1 is not 3."""
    number = isinstance(data, int | float | Decimal) and not isinstance(data, bool)
    if number and (_exact(data) / _exact(divisor)).denominator != 1:
        yield ValidationError("the number is not a multiple")


def _exact(number: float | Decimal) -> Fraction:
    return Fraction(str(number))


_LINEAR: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
}
