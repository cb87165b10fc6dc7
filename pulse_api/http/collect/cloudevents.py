"""CloudEvents 1.0 as events: structured, batched and binary HTTP mode.

source + "#" + id   event_id (together they are unique, by the specification; see `event_id`)
dataset             an extension attribute; without it the last part of `type`
time                timestamp; without it the moment of arrival
data                data; must be a JSON object
traceparent         trace_id, its trace part
specversion, datacontenttype: not kept
all other           context
"""

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

import orjson

from pulse_api.http.collect import values
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.charsets import foreign
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.tables.arrow_columns import unusual

PREFIX = "ce-"
STRUCTURED = "application/cloudevents"
REQUIRED = ("id", "source", "type")
_PLACED = frozenset({"id", "dataset", "time", "data", "data_base64", "specversion", "datacontenttype"})
_BODY = ("data", "data_base64")
_TRACEPARENT_PARTS = 4
_AMBIGUOUS = re.compile("#|%2[35]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_HEADER = "Percent-encode the value's UTF-8, once: café is caf%C3%A9"


def is_binary(headers: Mapping[str, str], media_type: str) -> bool:
    """Whether the attributes are in the headers and the body is the data.

    The media type decides: proxies add the headers to what is structured, too.
    """
    return "ce-specversion" in headers and not media_type.startswith(STRUCTURED)


def of_headers(headers: Mapping[str, str], data: Any, *, max_values: int) -> dict[str, Any]:
    """The event of a request in binary mode. Raises ProblemError: as `to_event`, and 400 for a bad header."""
    for name in _BODY:
        if PREFIX + name in headers:
            detail = f"the header {PREFIX}{name} is there, and the body holds the data"
            raise ProblemError(400, "malformed", detail, fix="Send the data as the body only")
    attributes: dict[str, Any] = {
        name[len(PREFIX) :]: _value(name, value) for name, value in headers.items() if name.startswith(PREFIX)
    }
    return to_event(attributes | {"data": data}, max_values)


def _value(name: str, text: str) -> str:
    """The value of a header: unquoted (RFC 9110), then percent-decoded once, as the HTTP binding says."""
    if text[:1] == '"':
        if (quoted := _QUOTED.fullmatch(text)) is None:
            raise ProblemError(
                400, "malformed", f"the header {name[:100]} has a quote that does not end", fix=_HEADER
            )
        text = _ESCAPED.sub(r"\1", quoted[1])
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()  # the server decodes headers as Latin-1
    except UnicodeError:
        raise ProblemError(400, "malformed", f"the header {name[:100]} is not UTF-8", fix=_HEADER) from None


_EXPECTED = "Send specversion 1.0, id, source, type and data; or a plain event as application/json"


def to_event(cloud: Any, max_values: int) -> dict[str, Any]:
    """The event of a CloudEvent; its data are validated later.

    Raises:
        ProblemError: 400 when it is not a CloudEvent of version 1.0; 413 when its data_base64 holds too
            many values.
        RecursionError: its data_base64 is nested too deep.
    """
    if not isinstance(cloud, dict) or cloud.get("specversion") != "1.0":
        raise ProblemError(400, "malformed", "this is not a CloudEvent of specversion 1.0", fix=_EXPECTED)
    for name in REQUIRED:
        if not isinstance(cloud.get(name), str) or not cloud[name]:
            raise ProblemError(400, "malformed", f"a CloudEvent needs the attribute {name}", fix=_EXPECTED)
    if all(cloud.get(name) is not None for name in _BODY):
        detail = "a CloudEvent has data or data_base64, and this has both"
        raise ProblemError(400, "malformed", detail, fix="Send the data once")
    event: dict[str, Any] = {
        "event_id": event_id(cloud["source"], cloud["id"]),
        "dataset": cloud["type"].rpartition(".")[2],
        "timestamp": utc_text(datetime.now(UTC)),
        "data": _data(cloud, max_values),
        "context": {name: value for name, value in cloud.items() if name not in _PLACED},
    }
    for name, member in (("dataset", "dataset"), ("time", "timestamp")):
        if cloud.get(name) is not None:  # an empty one is refused: the event may be of another time
            event[member] = cloud[name]
    trace = str(cloud.get("traceparent", "")).split("-")
    if len(trace) == _TRACEPARENT_PARTS:
        event["trace_id"] = trace[1]
    return event


def event_id(source: str, name: str) -> str:
    """The event id of a CloudEvent, another one for each pair: a source may have `#`, so an id has none."""
    if _AMBIGUOUS.search(name):
        name = name.replace("%", "%25").replace("#", "%23")
    return f"{source}#{name}"


def identity(cloud: Any) -> dict[str, Any] | None:
    """The event id of an invalid CloudEvent, as a member of an event; None if it has no id."""
    if not isinstance(cloud, dict):
        return None
    source, name = cloud.get("source"), cloud.get("id")
    if not (isinstance(source, str) and isinstance(name, str) and source and name):
        return None
    return {"event_id": event_id(source, name)}


def _data(cloud: Mapping[str, Any], max_values: int) -> Any:
    if cloud.get("data_base64") is None:
        return cloud.get("data")
    content = b""
    if (charset := foreign(str(cloud.get("datacontenttype", "")))) is not None:
        detail = f"data_base64 holds text in the charset {charset!r}"
        raise ProblemError(400, "malformed", detail, fix="Send the data in UTF-8")
    try:
        content = base64.b64decode(cloud["data_base64"], validate=True)
        values.bound(content, max_values)
        decoded = orjson.loads(content)
        return json_values.exact(content) if unusual([content]) else decoded
    except TypeError as error:
        raise ProblemError(400, "malformed", f"data_base64 holds no JSON: {error}") from error
    except ValueError as error:
        why = clearer(content, error)
        raise ProblemError(400, "malformed", f"data_base64 holds no JSON: {why}") from error
