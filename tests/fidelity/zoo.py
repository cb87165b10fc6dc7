"""Values that systems change: as JSON texts, by kind and name. Each is sent as it is written here."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fidelity.zoo_texts import ESCAPED, HIDDEN, NAMES, SHARED, TEXTS


class Value(NamedTuple):
    kind: str
    name: str
    member: str
    """Its property's name, as JSON."""
    text: str
    """As JSON; bytes that are no UTF-8 are surrogates, as `surrogateescape` has them."""

    @property
    def key(self) -> str:
        return f"{self.kind}: {self.name}"


KINDS: dict[str, str] = {
    "integer": "whole numbers",
    "number": "numbers with a fraction or an exponent",
    "text": "texts",
    "moment": "instants (`date-time`)",
    "day": "dates",
    "flag": "booleans",
    "any": "properties of any type",
    "list": "lists",
    "thing": "objects",
    "absent": "null, and nothing",
    "name": "names of properties",
}
"""By kind, what the page calls it."""


def _nullable(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"]} | more


PROPERTIES: Mapping[str, Any] = {
    "integer": _nullable("integer"),
    "number": _nullable("number"),
    "text": _nullable("string"),
    "moment": _nullable("string", format="date-time"),
    "day": _nullable("string", format="date"),
    "flag": _nullable("boolean"),
}
"""Declared properties of plain types, by name: events of these are decoded in one pass."""

_OBJECT: Mapping[str, Any] = _nullable(
    "object",
    properties={
        "n": _nullable("number"),
        "i": _nullable("integer"),
        "s": _nullable("string"),
        "deep": _nullable("object", properties={"x": _nullable("integer")}),
        "many": _nullable("array", items=_nullable("object", properties={"k": _nullable("string")})),
    },
)
_ESCAPES = {number: f"\\u{number:04x}" for number in range(32)} | {34: '\\"', 92: "\\\\"}


def quoted(text: str) -> str:
    """A text as JSON, with only those escapes that JSON asks for."""
    return f'"{text.translate(_ESCAPES)}"'


def _rich() -> dict[str, Any]:
    texts = _nullable("string")
    lists = {"texts": texts, "numbers": _nullable("number"), "integers": _nullable("integer")}
    lists |= {"flags": _nullable("boolean"), "nested": _nullable("array", items=_nullable("integer"))}
    lists["things"] = dict(_OBJECT)
    properties: dict[str, Any] = {"any": {}, "thing": _OBJECT, "bare": _nullable("object")}
    properties |= {name: _nullable("array", items=items) for name, items in lists.items()}
    return properties | {name: texts for name in (*NAMES, *HIDDEN) if name not in SHARED}


RICH: Mapping[str, Any] = _rich()
"""Declared properties of the other types: events of these are validated one at a time."""

INTEGERS = (
    *("0", "-0", "1", "-1", "9", "10", "127", "128", "-129", "255", "256", "32767", "32768", "65536"),
    *("2147483647", "2147483648", "-2147483649", "4294967296", "9007199254740991", "9007199254740992"),
    *("9007199254740993", "-9007199254740993", "999999999999999999", "9223372036854775806"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "12345678901234567890123", "1" + "0" * 40),
    *("1.0", "1e3", "9007199254740993.0", "1e19", "-0.0"),
)
NUMBERS = (
    *(
        "0.0",
        "-0.0",
        "-0",
        "0.1",
        "1.1",
        "1.10",
        "1.50",
        "100.00",
        "0.30000000000000004",
        "123456789.123456789",
    ),
    *("3.141592653589793", "3.14159265358979323846", "0.12345678901234567890", "0.1234567890123456789"),
    *("9007199254740992.0", "9007199254740993.5", "9007199254740993", "9223372036854775807", "1e16"),
    *("1.5e16", "1e21", "1e22", "1e23", "1E5", "1e5", "1e+5", "1.0e-7", "0.000001", "0.0000001", "1e-5"),
    *("4.9e-324", "5e-324", "2.2250738585072014e-308", "2.225073858507201e-308", "1e-400", "-1e-400"),
    *("1.7976931348623157e308", "-1.7976931348623157e308", "1.7976931348623159e308", "1e308", "1e400"),
    *("-1e400", "12345678901234567890.5", "0.1000000000000000055511151231257827", "99.995", "-0.5"),
    *("8.41", "1" + "0" * 300, "0." + "0" * 30 + "1", "79228162514264337593543950335.1"),
)
MOMENTS = (
    *("1970-01-01T00:00:00Z", "2026-11-19T10:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
    *("9999-12-31T23:59:59Z", "1582-10-10T00:00:00Z", "1582-10-04T23:59:59Z", "1883-11-18T12:03:58-04:56"),
    *("1900-02-28T23:59:59Z", "2000-02-29T00:00:00Z", "1969-12-31T23:59:59.999999Z", "1677-09-21T00:12:43Z"),
    *("2262-04-11T23:47:16.854775Z", "2262-04-11T23:47:17Z", "2038-01-19T03:14:08Z", "2106-02-07T06:28:16Z"),
    *("2026-11-19T10:00:00+00:00", "2026-11-19T10:00:00-00:00", "2026-11-19T10:00:00+02:00"),
    *("2026-11-19T10:00:00+05:45", "2026-11-19T10:00:00+14:00", "2026-11-19T10:00:00-12:00"),
    *("2026-11-19T10:00:00+23:59", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00"),
    *("2026-03-29T02:30:00+01:00", "2026-11-01T01:30:00-04:00", "2026-11-19T10:00:00.1Z"),
    *("2026-11-19T10:00:00.120Z", "2026-11-19T10:00:00.123456Z", "2026-11-19T10:00:00.1234567Z"),
    *("2026-11-19T10:00:00.123456789Z", "2026-11-19T10:00:00.999999999Z", "2026-11-19T10:00:00.0000000Z"),
    *("2016-12-31T23:59:60Z", "2016-12-31T23:59:60.5Z", "2026-11-19T24:00:00Z", "2026-02-29T00:00:00Z"),
    *("2026-11-19t10:00:00z", "2026-11-19 10:00:00Z", "2026-11-19T10:00:00", "2026-11-19T10:00Z"),
    *("2026-11-19", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "infinity", "19.11.2026", ""),
)
DAYS = (
    *("1970-01-01", "0001-01-01", "9999-12-31", "1582-10-10", "1900-02-28", "2000-02-29", "2026-11-19"),
    *("0000-01-01", "10000-01-01", "2026-02-29", "20261119", "2026-W47-4", "2026-1-1", "infinity", ""),
)
ANY = {
    "text": '"a"',
    "text of digits": '"1"',
    "text null": '"null"',
    "empty text": '""',
    "quotes in a text": '"\\"a\\""',
    "integer": "1",
    "2^53 + 1": "9007199254740993",
    "2^63": "9223372036854775808",
    "2^64": "18446744073709551616",
    "1.10": "1.10",
    "20 digits": "0.12345678901234567890",
    "-0.0": "-0.0",
    "1e5": "1e5",
    "true": "true",
    "empty object": "{}",
    "empty list": "[]",
    "object": '{"b": 1, "a": [1.5, "x", null]}',
    "null in an object": '{"a": null}',
    "list of null": "[null]",
    "mixed list": '[1, "1", 1.0, true, null, {}, []]',
    "name empty": '{"": 1}',
    "name twice": '{"a": 1, "a": 2}',
    "names by case": '{"a": 1, "A": 2}',
    "name __proto__": '{"__proto__": {"x": 1}}',
    "name NFC and NFD": '{"caf\u00e9": 1, "cafe\u0301": 2}',
    "order of names": '{"z": 1, "y": 2, "x": 3}',
    "numbers as names": '{"10": 1, "9": 2}',
    "30 levels": '{"a": ' * 30 + "1" + "}" * 30,
    "30 lists": "[" * 30 + "1" + "]" * 30,
    "100 levels": "[" * 100 + "]" * 100,
    "1,000 levels": "[" * 1000 + "]" * 1000,
    "1,000 members": json.dumps({f"m{n}": n for n in range(1000)}),
    "1,000 items": json.dumps(list(range(1000))),
    "white space": '{ "a" :\t[ 1 ,  2 ] }',
    "trailing comma": '{"a": 1,}',
    "comment": "{/* a */}",
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "leading zero": "01",
    "plus": "+1",
    "point at the end": "1.",
    "single quotes": "'a'",
}
LISTS = {
    "texts": ("[]", '[""]', '["a", "b"]', "[null]", '["a", null]', '["a,b", "\\"", "\\\\", " "]', '["null"]'),
    "numbers": ("[0.1, 1.10, 1e5]", "[-0.0]", "[1, 2]", "[0.12345678901234567890]", "[9007199254740993]"),
    "integers": ("[1, -1, 9223372036854775807]", "[9223372036854775808]", "[1.0]", "[null, 1]"),
    "flags": ("[true, false, null]",),
    "nested": ("[[1, 2], [], [3]]", "[null, [null]]"),
    "things": ('[{"s": "a"}, {}, {"n": 0.1}]', "[null]", '[{"s": "a", "z": 1.10}]', '[{"s": null}]'),
}
THINGS = {
    "empty": "{}",
    "members": '{"n": 0.1, "i": 1, "s": "a"}',
    "deep": '{"deep": {"x": 9223372036854775807}}',
    "deep and empty": '{"deep": {}}',
    "null member": '{"s": null, "i": 1}',
    "only a null member": '{"s": null}',
    "undeclared member": '{"s": "a", "other": 1.10}',
    "undeclared null": '{"s": "a", "other": null}',
    "undeclared within": '{"deep": {"x": 1, "y": {"z": [1, {"k": "v"}]}}}',
    "only undeclared": '{"other": {"a": []}}',
    "list of objects": '{"many": [{"k": "a"}, {"k": "b", "more": true}]}',
    "empty list": '{"many": []}',
    "digits": '{"n": 0.12345678901234567890}',
}


def _members(values: Mapping[str, str], kind: str, name: str = "") -> Iterator[Value]:
    return (Value(kind, text, quoted(name or kind), value) for text, value in values.items())


def _zoo() -> Iterator[Value]:
    yield from _members({n if len(n) < 30 else f"10^{len(n) - 1}": n for n in INTEGERS}, "integer")
    yield from _members({n if len(n) < 45 else f"10^{len(n) - 1}": n for n in NUMBERS}, "number")
    yield from _members({name: quoted(text) for name, text in TEXTS.items()}, "text")
    yield from _members(ESCAPED, "text")
    yield from _members({moment or "empty": quoted(moment) for moment in MOMENTS}, "moment")
    yield from _members({day or "empty": quoted(day) for day in DAYS}, "day")
    yield from _members({"true": "true", "false": "false", "1": "1", '"true"': '"true"'}, "flag")
    yield from _members(ANY, "any")
    for name, texts in LISTS.items():
        yield from (Value("list", f"{name} {text}", quoted(name), text) for text in texts)
    yield from _members(THINGS, "thing")
    for name in (*PROPERTIES, "any", "thing", "texts"):
        yield Value("absent", f"{name}: null", quoted(name), "null")
    yield Value("absent", "object without members", quoted("bare"), "{}")
    yield from (Value("name", shown(name), quoted(name), '"x"') for name in (*NAMES, *HIDDEN))
    yield Value("name", "NUL", '"a\\u0000b"', '"x"')
    yield Value("name", "lone surrogate", '"\\ud800"', '"x"')


def shown(text: str, longest: int = 30) -> str:
    """A text for people: ASCII, short, never empty."""
    plain = text.encode("ascii", "backslashreplace").decode().replace("\n", "\\n").replace("\t", "\\t")
    plain = plain if len(plain) <= longest else f"{plain[:8]}... ({len(text)})"
    return plain if plain.strip() else f"'{plain}'"


ZOO: tuple[Value, ...] = tuple(_zoo())
