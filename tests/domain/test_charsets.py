"""Charsets of a Content-Type: UTF-8 and its part ASCII are taken, all others are named."""

import pytest

from pulse_pipelines.domain.charsets import foreign


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("", None),
        ("application/json", None),
        ("application/json; charset=utf-8", None),
        ('Application/JSON ; Charset = "UTF-8"', None),
        ("text/csv;header=present;charset=utf8", None),
        ("text/csv; charset=US-ASCII; header=present", None),
        ("text/csv; name=charset", None),
        ('text/csv; name="; charset=latin1"', None),
        ("application/json; charset=iso-8859-1", "iso-8859-1"),
        ('application/json;charset="Windows-1252"', "windows-1252"),
        ("application/json; charset=utf-8; charset=utf-16", "utf-16"),
        ("application/json; charset=", ""),
        ("application/json; charset=" + "x" * 100, "x" * 40),
    ],
)
def test_charsets_that_are_not_utf_8_are_named(content_type: str, charset: str | None) -> None:
    assert foreign(content_type) == charset
