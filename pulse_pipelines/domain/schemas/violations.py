"""Violations: why data does not follow a schema, and where."""

from functools import lru_cache
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import orjson

from pulse_pipelines.domain.event import json_pointer, values
from pulse_pipelines.domain.schemas.applications import collected
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.cheap_checks import WRITTEN, guarded
from pulse_pipelines.domain.schemas.narrowing import Narrowing, reachable
from pulse_pipelines.domain.schemas.schema import OPTIONS, compiled
from pulse_pipelines.domain.schemas.subschemas import resolve

MAX_MESSAGE, MAX_VALUE = 600, 200
"""Characters of a message, and of the value at its beginning if it is longer."""
MAX_PARTS = 3_000
"""Subschemas compiled to locate a violation in a large value: each takes up to 40 microseconds."""
_ADDRESS = "urn:pulse:bundle"
MAX_COLLECTED = 2_500
"""Maximum errors of choices collected to locate a violation: each takes up to 16 microseconds."""


@lru_cache(maxsize=1024)
def _collected(document: str) -> int:
    """The maximum number of errors that the validator collects for one value before it reports the first."""
    if '"anyOf"' not in document and '"oneOf"' not in document:
        return 0
    return collected(orjson.loads(document))


def violation(document: str, data: Any) -> tuple[str, str] | None:
    """JSON pointer and message of the first violation of a published document by `data`; None if valid.

    The validator collects the errors of all choices before it reports the first; if these could be too many,
    the place is narrowed down first (see `violations`), maybe not to its end.
    """
    check = compiled(document)
    if check.is_valid(data):
        return None
    if (errors := _collected(document)) and values(data) * errors > MAX_COLLECTED:
        return _narrowed(document, data, errors)
    try:
        check.validate(data)
    except jsonschema_rs.ValidationError as error:
        at_fault = _nearest(error)
        return json_pointer(list(at_fault.instance_path)), _brief(_message(document, at_fault))
    return None


def _narrowed(document: str, data: Any, errors: int) -> tuple[str, str]:
    """As `violation`, of data of which the validator would collect too many errors."""
    root = _validated(document)
    narrowing = Narrowing(root, _Parts(root), lambda part: values(part) * errors <= MAX_COLLECTED)
    path, part, check = narrowing.place(data)
    if isinstance(check, dict):
        check = jsonschema_rs.validator_for(check, **OPTIONS)
    try:
        check.validate(part)
    except jsonschema_rs.ValidationError as error:
        at_fault = _nearest(error)
        return json_pointer([*path, *at_fault.instance_path]), _brief(str(at_fault.message))
    return json_pointer(path), "it does not follow the schema; it is too large to say where"


class _Parts:
    """Validators of the subschemas of a bundle, made as they are needed while they are not too many."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root, self._remaining_parts = root, MAX_PARTS
        self._made: dict[str, Any] = {}
        plain = {name: value for name, value in root.items() if name not in ("$id", "id")}
        self._draft = {"$schema": root["$schema"]} if "$schema" in root else {}
        self._registry = jsonschema_rs.Registry([(_ADDRESS, plain)])

    def get(self, pointer: str) -> Any | None:
        if pointer not in self._made:
            node = resolve(quote(pointer), self._root)
            size = reachable(node, self._root, self._remaining_parts) if isinstance(node, dict) else 0
            if not 0 < size <= self._remaining_parts:
                return None
            self._remaining_parts -= size
            part = self._draft | {"$ref": f"{_ADDRESS}{quote(pointer, safe='#/~')}"}
            options = {name: value for name, value in OPTIONS.items() if name != "retriever"}
            self._made[pointer] = jsonschema_rs.validator_for(part, registry=self._registry, **options)
        return self._made[pointer]


def _nearest(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """The violation within the choice that the value nearly is; the choices' own if none is nearer.

    Nearer is a choice whose type fits the value, then its constant members, then one with fewer violations.
    """
    choices: list[list[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", None) or []
    choices = [errors for errors in choices if errors]
    if not choices:
        return error
    depth = len(error.instance_path)

    def measure_distance(errors: list[jsonschema_rs.ValidationError]) -> tuple[int, int, int]:
        by_type, by_constant = zip(*(_distance(error, depth) for error in errors), strict=True)
        return sum(by_type), sum(by_constant), len(errors)

    nearest = min(choices, key=measure_distance)
    within = max(map(_nearest, nearest), key=lambda error: len(error.instance_path))
    return within if len(choices) == 1 or len(within.instance_path) > depth else error


def _distance(error: jsonschema_rs.ValidationError, depth: int) -> tuple[bool, bool]:
    """Whether a violation says that a value is of another choice: by its type, or by a constant member."""
    below, kind = len(error.instance_path) - depth, jsonschema_rs.ValidationErrorKind
    is_constant = below <= 1 and isinstance(error.kind, kind.Constant | kind.Enum)
    return below == 0 and isinstance(error.kind, kind.Type), is_constant


def _brief(message: str) -> str:
    """A message without the middle of a long value: its end states what is wrong."""
    return (
        message
        if len(message) <= MAX_MESSAGE
        else f"{message[:MAX_VALUE]} ... {message[MAX_VALUE - MAX_MESSAGE :]}"
    )


@lru_cache(maxsize=256)
def _validated(document: str) -> dict[str, Any]:
    """What the validator of a published document was compiled from."""
    return guarded(bundled(orjson.loads(document)))


def _message(document: str, error: jsonschema_rs.ValidationError) -> str:
    """The message of a violation: of a pattern that is replaced, by the pattern that the document has."""
    message, path = str(error.message), list(error.schema_path)
    if "allOf" not in path or path[-1] not in ("pattern", "not"):
        return message
    node: Any = _validated(document)
    for part in path[:-1]:
        node = node[part]
    if WRITTEN not in node:
        return message
    kind = error.kind
    at_fault = kind.error if isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames) else error
    return f"{_text(at_fault.instance)} does not match {_text(node[WRITTEN])}"


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
