"""CloudEvents 1.0 as events: structured, batched and binary HTTP mode.

source + "#" + id   event_id (together they are unique, by the specification)
dataset             an extension attribute; without it the last part of `type`
time                timestamp; without it the moment of arrival
data                data; must be a JSON object
traceparent         trace_id, its trace part
all other           context
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import orjson

from pulse_api.http.collect import values
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain.event import suspicious

PREFIX = "ce-"
REQUIRED = ("id", "source", "type")
_PLACED = frozenset({"id", "dataset", "time", "data", "data_base64", "specversion", "datacontenttype"})
_TRACEPARENT_PARTS = 4


def is_binary(headers: Mapping[str, str]) -> bool:
    """Whether the attributes are in the headers and the body is the data."""
    return "ce-specversion" in headers


def of_headers(headers: Mapping[str, str], data: Any, max_values: int) -> dict[str, Any]:
    """The event of a request in binary mode."""
    attributes: dict[str, Any] = {
        name[len(PREFIX) :]: unquote(value) for name, value in headers.items() if name.startswith(PREFIX)
    }
    return to_event(attributes | {"data": data}, max_values)


_ASKED = "Send specversion 1.0, id, source, type and data; or a plain event as application/json"


def to_event(cloud: Any, max_values: int) -> dict[str, Any]:
    """The event of a CloudEvent; its data are validated later.

    Raises:
        ProblemError: 400 when it is not a CloudEvent of version 1.0; 413 when its data_base64 holds too
            many values.
    """
    if not isinstance(cloud, dict) or cloud.get("specversion") != "1.0":
        raise ProblemError(400, "malformed", "this is not a CloudEvent of specversion 1.0", fix=_ASKED)
    for name in REQUIRED:
        if not isinstance(cloud.get(name), str) or not cloud[name]:
            raise ProblemError(400, "malformed", f"a CloudEvent needs the attribute {name}", fix=_ASKED)
    event: dict[str, Any] = {
        "event_id": f"{cloud['source']}#{cloud['id']}",
        "dataset": cloud.get("dataset") or cloud["type"].rpartition(".")[2],
        "timestamp": cloud.get("time") or datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "data": _data(cloud, max_values),
        "context": {name: value for name, value in cloud.items() if name not in _PLACED},
    }
    trace = str(cloud.get("traceparent", "")).split("-")
    if len(trace) == _TRACEPARENT_PARTS:
        event["trace_id"] = trace[1]
    return event


def _data(cloud: Mapping[str, Any], max_values: int) -> Any:
    if "data_base64" not in cloud:
        return cloud.get("data")
    try:
        content = base64.b64decode(cloud["data_base64"], validate=True)
        values.bound(content, max_values)
        decoded = orjson.loads(content)
        return json.loads(content) if suspicious(content) else decoded
    except (TypeError, ValueError, RecursionError) as error:
        raise ProblemError(400, "malformed", f"data_base64 holds no JSON: {error}") from error
