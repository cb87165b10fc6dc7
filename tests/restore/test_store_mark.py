"""The store mark as others may leave it: an object that holds no mark is named, and holds upkeep."""

import uuid
from datetime import UTC, datetime

import pytest

from pulse_pipelines.tables import store_mark
from pulse_resources.errors import Terminal

MARK = uuid.UUID(int=7)
AT = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff garbage",
        b"[]",
        b"null",
        b'{"mark": 1, "marked_at": "2026-11-29T00:00:00+00:00"}',
        b'{"mark": "00000000-0000-0000-0000-000000000007"}',
        b'{"mark": "00000000-0000-0000-0000-000000000007", "marked_at": "2026-11-29T00:00:00"}',
    ],
)
def test_an_object_that_holds_no_mark_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(store_mark, "_path", lambda: "s3://pulse/upkeep/mark.json")
    monkeypatch.setattr(store_mark, "_read_row", lambda: store_mark._Row(MARK, MARK, AT))
    monkeypatch.setattr(store_mark, "_content", lambda: content)
    difference = store_mark.compare()
    assert difference is not None
    assert difference.sentence.startswith("s3://pulse/upkeep/mark.json holds no mark")
    with pytest.raises(Terminal, match="holds no mark"):
        store_mark.check()
