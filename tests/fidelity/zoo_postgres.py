"""Values of Postgres that pipes change: by type, as literals; and what the docs say each becomes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'so, so', 'he said \"ha\"', '', 'NULL', 'Ünï')",
    "CREATE TYPE pair AS (a integer, b text)",
    "CREATE DOMAIN cents AS numeric(12, 2)",
    "CREATE DOMAIN short AS varchar(5)",
    "CREATE DOMAIN far AS timestamptz",
    "CREATE SCHEMA own",
    "CREATE TYPE own.date AS ENUM ('soon')",
    "CREATE TYPE own.name AS (first text, last text)",
)
"""Types of the source's own."""


class Type(NamedTuple):
    name: str
    becomes: str
    """An expression of the column as documented, as JSON; `v` is the column."""
    values: Sequence[str]
    beyond: Sequence[str] = ()
    """Values that JSON, or a column, has none of."""


_JSON, _TEXT, _TEXTS = "to_json(v)", "to_json(v::text)", "to_json(v::text[])"
_ISO = ("0001-01-01", "9999-12-31", "1582-10-10", "1900-02-28", "2000-02-29", "1970-01-01", "2026-03-29")
_MIDNIGHT = [f"{day} 00:00:00" for day in _ISO]
_TIMES = (
    "2026-03-29 02:30:00",
    "2026-11-19 10:00:00.1",
    "2026-11-19 10:00:00.123456",
    "1969-12-31 23:59:59.999999",
)
_TEXTS_OF_ALL = (
    *(
        "",
        " ",
        "  a  ",
        "null",
        "NULL",
        "\\N",
        "\\.",
        "a\tb",
        "a\nb",
        "a\r\nb",
        "\x01",
        "\x7f",
        "=1+1",
        "'a'",
    ),
    *(
        '"',
        '{"a": 1}',
        "{a,b}",
        "caf\u00e9",
        "cafe\u0301",
        "\ufeffa",
        "\ufffe",
        "\U0001f600",
        "\u202ea",
        "\\",
    ),
    *("1e5", "007", "2020-01-01", "\u2028", "Infinity", "\\x00ff", "true", "-0"),
)

TYPES: Sequence[Type] = (
    Type("smallint", _JSON, ("0", "-32768", "32767")),
    Type("integer", _JSON, ("0", "-2147483648", "2147483647")),
    Type("bigint", _JSON, ("9007199254740993", "-9223372036854775808", "9223372036854775807")),
    Type(
        "real",
        _JSON,
        ("0", "-0", "0.1", "1.1", "16777217", "3.4028235e38", "1e-45", "1.17549435e-38", "123456.79"),
        ("NaN", "Infinity", "-Infinity"),
    ),
    Type(
        "double precision",
        _JSON,
        (
            "0",
            "-0",
            "0.1",
            "0.30000000000000004",
            "1.7976931348623157e308",
            "5e-324",
            "1e22",
            "9007199254740993",
        ),
        ("NaN", "Infinity", "-Infinity"),
    ),
    Type(
        "numeric",
        _TEXT,
        (
            *("0", "0.00", "1.10", "100.00", "-0.5", "0.12345678901234567890", "1e-30", "1e40", "NaN"),
            *("Infinity", "-Infinity", "9" * 60 + "." + "9" * 60, "79228162514264337593543950335.1"),
        ),
    ),
    Type("numeric(30, 10)", _TEXT, ("0", "1.10", "12345678901234567890.0123456789")),
    Type("cents", _TEXT, ("1.10", "0", "-99.995")),
    Type("money", _TEXT, ("0", "1.10", "-1234567.89")),
    Type("boolean", _JSON, ("true", "false")),
    Type("text", _JSON, _TEXTS_OF_ALL),
    Type("varchar", _JSON, ("", " ", "caf\u00e9")),
    Type("char(5)", _TEXT, ("ab", "", "abcde")),
    Type("short", _JSON, ("a b", "")),
    Type("uuid", _JSON, ("33C892A3-239E-4F80-8F0A-284C54A1ACE3", "00000000-0000-0000-0000-000000000000")),
    Type(
        "timestamptz",
        _JSON,
        (
            *(f"{at}+00" for at in (*_MIDNIGHT, *_TIMES)),
            "2026-03-29 02:30:00+02",
            "9999-12-31 23:59:59.999999+00",
        ),
        ("infinity", "-infinity", "10000-01-01 00:00+00", "0001-01-01 00:00+00 BC"),
    ),
    Type("far", _JSON, ("2026-11-19 10:00:00+05:45",)),
    Type("timestamp", _JSON, (*_MIDNIGHT, *_TIMES, "infinity", "-infinity", "0044-03-15 12:00:00 BC")),
    Type("date", _JSON, _ISO, ("infinity", "-infinity", "10000-01-01", "0044-03-15 BC")),
    Type("time", _TEXT, ("00:00", "24:00", "23:59:59.5", "10:00:00.123456")),
    Type("timetz", _TEXT, ("00:00+00", "10:00+02", "24:00:00-12", "10:00:00.123456+05:45")),
    Type(
        "interval",
        _TEXT,
        (
            *(
                "0",
                "1 month 2 days 03:00:00",
                "-1 day",
                "1 day -2 hours",
                "0.000001 seconds",
                "1 year -1 month",
            ),
            *("24 hours", "1 day", "178000000 years", "30 days", "1 month"),
        ),
    ),
    Type(
        "jsonb",
        "v",
        (
            *(
                "null",
                "{}",
                "[]",
                '""',
                "1.10",
                "0.12345678901234567890",
                "1e5",
                '{"b": 1, "a": 1.0}',
                '"\\u00e9"',
            ),
            *("12345678901234567890123", '{"a": null}', "[[[]]]", '{"": 1}', "true", "-0"),
        ),
    ),
    Type("json", "v", ("null", '{"b": 1, "a": 2}', "1.10", '"a"', " [1 ,2 ] ", "1e400")),
    Type(
        "bytea",
        "to_json(translate(encode(v, 'base64'), E'\\n', ''))",
        ("", "\\x00", "\\x00ff", "\\x" + "ab" * 100),
    ),
    Type("mood", _TEXT, ("sad", "so, so", 'he said "ha"', "", "NULL", "\u00dcn\u00ef")),
    Type("own.date", _TEXT, ("soon",)),
    Type("own.name[]", _TEXTS, ('{"(a,b)",NULL}',)),
    Type("inet", _TEXT, ("10.0.0.1", "10.0.0.0/8", "::1", "fe80::1/64")),
    Type("cidr", _TEXT, ("10.0.0.0/8",)),
    Type("macaddr", _TEXT, ("08:00:2b:01:02:03",)),
    Type("bit(3)", _TEXT, ("101",)),
    Type("varbit", _TEXT, ("", "0101")),
    Type("int4range", _TEXT, ("[1,5]", "empty", "(,)", "[1,)")),
    Type("tstzrange", _TEXT, ("[2026-01-01 00:00+00,infinity)", '["2026-01-01 10:00+02",)')),
    Type("int4multirange", _TEXT, ("{[1,3), [5,7)}",)),
    Type("pair", _TEXT, ('(1,"a b")', "(,)", '(1,"")')),
    Type("point", _TEXT, ("(0.1,-0)",)),
    Type("tsvector", _TEXT, ("'a':1 'b':2",)),
    Type("pg_lsn", _TEXT, ("16/B374D848",)),
    Type('"char"', _TEXT, ("a",)),
    Type("integer[]", _JSON, ("{}", "{1,NULL,-1}"), ("{{1,2},{3,4}}",)),
    Type("bigint[]", _JSON, ("{9007199254740993}",)),
    Type("double precision[]", _JSON, ("{0.1,-0}",), ("{NaN}",)),
    Type("boolean[]", _JSON, ("{t,f,NULL}",)),
    Type("text[]", _JSON, ("{}", '{""}', '{NULL,"NULL"}', '{"a,b","\\"","\\\\"," "}', "{caf\u00e9}")),
    Type("uuid[]", _JSON, ("{33c892a3-239e-4f80-8f0a-284c54a1ace3}",)),
    Type("numeric[]", _TEXTS, ("{1.10,NaN,NULL}",)),
    Type("timestamptz[]", _TEXTS, ("{2026-11-19 10:00+00,infinity}",)),
    Type("interval year to month", _TEXT, ("1-2", "-3 months")),
    Type("interval day to second(0)", _TEXT, ("1 day 00:00:01",)),
    Type("interval[]", _TEXTS, ("{1 mon,1 day -1 sec}",)),
    Type("daterange", _TEXT, ("[2026-01-01,2026-02-01)", "(,)", "[2026-01-01,infinity)")),
    Type("tsrange", _TEXT, ('["2026-03-29 02:30:00",infinity]', "empty")),
    Type("tsmultirange", _TEXT, ("{[2026-01-01 10:00,2026-01-02 10:00)}",)),
    Type("date[]", _TEXTS, ("{infinity,0044-03-15 BC}",)),
    Type("time[]", _TEXTS, ("{24:00,00:00:00.1}",)),
    Type("box[]", _TEXTS, ("{(1,1),(0,0);(2,2),(0,0)}",)),
    Type("oid", _TEXT, ("4294967295",)),
    Type("xid8", _TEXT, ("18446744073709551615",)),
    Type("name", _JSON, ("caf\u00e9",)),
    Type("jsonb[]", _TEXTS, ('{"{\\"a\\": 1.10}",NULL}',)),
    Type("mood[]", _TEXTS, ('{sad,"so, so",""}',)),
    Type("bytea[]", _TEXTS, ('{"\\\\x00ff"}',)),
)
"""Every type that a value may change in, with the values that do."""

COLUMNS: Mapping[str, Type] = {f"c{number}": kind for number, kind in enumerate(TYPES)}
"""The table's columns, by name."""
