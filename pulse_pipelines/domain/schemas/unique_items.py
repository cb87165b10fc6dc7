"""`uniqueItems` in linear time: the validator's own implementation compares short arrays pair by pair, and
numbers digit by digit."""

import os
from collections.abc import Callable
from typing import Any


class UniqueItems:
    """The keyword's implementation for the validator; values that are not arrays are valid."""

    def __init__(self, parent: Any, enabled: bool, location: Any) -> None:
        self._enabled = enabled

    def validate(self, instance: Any) -> None:
        """Raises ValueError where two items are equal."""
        if not self._enabled or type(instance) is not list or len(instance) < 2:
            return
        try:
            equal = _equal_items(instance)
        except MemoryError:
            os.abort()  # as the validator does, which takes any exception for a violation
        if equal:
            raise ValueError("the array has equal items")


def _equal_items(items: list[Any]) -> bool:
    keys: set[str | bytes] = set()
    for item in items:
        key = item if type(item) is str else _key(item)
        if key in keys:
            return True
        keys.add(key)
    return False


def _key(value: Any) -> bytes:
    """Canonical bytes, the same for values that are equal in JSON Schema: 1 is 1.0, and true is not 1.

    Python hashes bytes and strings with a secret seed, so senders cannot choose values that collide.
    """
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts).encode(errors="surrogatepass")


def _write(value: Any, add: Callable[[str], None]) -> None:
    kind = type(value)
    if kind is str:
        add(f"{len(value)}:{value}")
    elif kind is int or (kind is float and value.is_integer()):
        add(f"{int(value):x};")  # in time that is linear in its digits, unlike decimals
    elif kind is dict:
        add("{")
        for name in sorted(value):
            add(f"{len(name)}:{name}")
            _write(value[name], add)
        add("}")
    elif kind is list:
        add("[")
        for item in value:
            _write(item, add)
        add("]")
    else:
        add(f"{value};")
