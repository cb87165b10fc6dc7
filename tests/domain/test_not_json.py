"""What is not JSON is described with its place, whichever decoder refuses it."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from pulse_pipelines.domain.expressions.grammar import parsed
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.domain.schemas.shorthand import write_out
from pulse_pipelines.manifest import document
from pulse_pipelines.pipes.rows import Maker
from pulse_resources.errors import UserError

LONG = "9" * 5_000
TEXTS: dict[bytes | str, str] = {
    b'{"\xc3\xa4":\n "\xff"}': "it is not UTF-8: the byte 0xff: line 2 column 3 (char 8)",
    b'["\xed\xa0\x80"]': "it is not UTF-8: half of a surrogate pair, which is not a character: "
    "line 1 column 3 (char 2)",
    b'["\xed': "it is not UTF-8: the byte 0xed: line 1 column 3 (char 2)",
    '["\ud800"]': "it is not UTF-8: half of a surrogate pair, which is not a character: "
    "line 1 column 3 (char 2)",
    f"[{LONG}]": "it has an integer of more than 4,300 digits",
    b'{"\xc3\xa4":\n "\\ud800"}': "the text has half of a surrogate pair, which is not a character: "
    "line 2 column 3 (char 8)",
    f"[{'9' * 400}]": "the number is beyond the largest double, 1.8e308: line 1 column 2 (char 1)",
    "[01]": "number with leading zero is not allowed: line 1 column 2 (char 1)",
}


def _error_of(decode: Callable[[Any], Any], text: Any) -> ValueError:
    try:
        decode(text)
    except ValueError as error:
        return error
    raise AssertionError("it is JSON")


@pytest.mark.parametrize(("text", "words"), TEXTS.items(), ids=range(len(TEXTS)))
def test_an_error_of_json_names_its_place(text: bytes | str, words: str) -> None:
    decode = json.loads if LONG in str(text) else orjson.loads
    assert str(clearer(text, _error_of(decode, text))) == words


WHOLE = "it is not UTF-8: the byte 0xff"
DIGITS = "an integer of more than 4,300 digits"
DOORS: dict[str, tuple[Callable[[], object], str]] = {
    "schema": (lambda: check_document(b'{"a": "\xff"}'), WHOLE),
    "shorthand": (lambda: write_out(b'{"fields": "\xff"}'), WHOLE),
    "manifest": (
        lambda: document.load(f"tenant: {LONG}".encode(), "the manifest"),
        f"{DIGITS}\n.*line 1, column 9",
    ),
    "value in a manifest": (lambda: document.load(b"a:\n  b: 010", "the manifest"), "line 2, column 6"),
    "manifest in JSON": (lambda: document.load(b'{"a": 1, "a": 2}', "the manifest"), "'a' is there twice"),
    "expression": (lambda: parsed(f"(a = {LONG})"), "more than 500 characters"),
}


@pytest.mark.parametrize("door", DOORS)
def test_each_entry_point_explains_invalid_json(door: str) -> None:
    open_door, words = DOORS[door]
    with pytest.raises(UserError, match=words) as refused:
        open_door()
    assert "surrogates not allowed" not in str(refused.value)
    assert "set_int_max_str_digits" not in str(refused.value)


def test_a_manifest_in_json_may_escape_surrogate_pairs() -> None:
    assert document.load(json.dumps({"name": "\U0001f600"}).encode(), "the manifest") == {
        "name": "\U0001f600"
    }


def test_a_row_that_is_not_utf_8_names_its_member() -> None:
    maker = Maker("planes", "2026-11-28T09:00:00Z", ("id",))
    _, payload = maker.event({"id": "1", "name": "caf\udce9"}, "planes.csv", 7)
    assert json.loads(payload)["context"]["error"] == "name is not UTF-8"
