"""Parts of a sync: query parameters of a push that say which sync it belongs to."""

from typing import Any

from fastapi import Request

from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain.syncs import Part

FLAGS = ("is_full", "is_first", "is_last")
NAMES = ("sequence_id", "request_id", "previous_request_id")
_FLAG_VALUES = {"true": True, "false": False}
_LONGEST = 200


def _described(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}


_FLAG: dict[str, Any] = {"type": "boolean", "default": False}
_NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
PARAMETERS = [
    _described("sequence_id", _NAME, "The sync that these entities are a part of, by a name of the sender."),
    _described("request_id", _NAME, "This part of it, by a name of the sender."),
    _described("previous_request_id", _NAME, "The part before; not given with the first one."),
    _described("is_full", _FLAG, "The sync brings all entities: what it does not bring is deleted."),
    _described("is_first", _FLAG, "The sync begins with this part."),
    _described("is_last", _FLAG, "The sync ends with this part."),
]


def part_of(request: Request) -> Part | None:
    """The part that a request declares; None where it does not belong to a sync.

    Raises:
        ProblemError: 422, a parameter is missing, or a flag is neither true nor false.
        UserError: a first part names a previous part, or a later part names none.
    """
    query = request.query_params
    parameters = {name: query[name] for name in (*NAMES, *FLAGS) if name in query}
    if not parameters:
        return None
    flags = {name: _FLAG_VALUES.get(parameters.get(name, "false")) for name in FLAGS}
    for name, value in flags.items():
        if value is None:
            raise ProblemError(422, "invalid-request", f"{name} is neither true nor false")
    if missing := [name for name in ("sequence_id", "request_id") if not parameters.get(name)]:
        raise ProblemError(
            422, "invalid-request", f"a part of a sync needs {' and '.join(missing)}", fix="Give both"
        )
    if long := [
        name for name in NAMES if len(parameters.get(name, "")) > _LONGEST or "\0" in parameters.get(name, "")
    ]:
        raise ProblemError(
            422, "invalid-request", f"{long[0]} is not a name of at most {_LONGEST} characters"
        )
    return Part(
        parameters["sequence_id"],
        parameters["request_id"],
        parameters.get("previous_request_id"),
        *(bool(flags[name]) for name in FLAGS),
    )
