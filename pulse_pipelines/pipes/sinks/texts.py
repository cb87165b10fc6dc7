"""Values of entities as Postgres reads them, by the column that they are written to."""

import base64
import binascii
from typing import Any

from pulse_pipelines.domain import json_values

ARRAY = "array"
_JSON = ("json", "jsonb")
_ESCAPED = str.maketrans({'"': '\\"', "\\": "\\\\"})


def text(value: Any, kind: str) -> str | None:
    """A value as text for a column.

    Args:
        kind: name of the column's type, or `array`.

    Raises:
        ValueError: no column of this type can hold it.
    """
    if value is None:
        return None
    if kind in _JSON:
        encoded = json_values.written(value).decode()
        if "\\u0000" in encoded and kind == "jsonb":
            raise ValueError("a text of Postgres has no NUL")
        return encoded
    if kind == ARRAY and isinstance(value, list):
        return _array(value)
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a text of Postgres has no NUL")
        return _bytes(value) if kind == "bytea" else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json_values.written(value).decode()
    return value.text if isinstance(value, json_values.Number) else repr(value)


def _bytes(value: str) -> str:
    """Base64, as pipes bring it."""
    try:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    except binascii.Error:
        raise ValueError("bytes are written as base64") from None


def _array(items: list[Any]) -> str:
    return "{" + ",".join(_item(item) for item in items) + "}"


def _item(item: Any) -> str:
    if isinstance(item, list):
        return _array(item)
    item_text = text(item, "text")
    return "NULL" if item_text is None else '"' + item_text.translate(_ESCAPED) + '"'
