"""Costs that no clock measures: calls of functions, statements to Postgres."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psycopg
import pytest


def count_calls(work: Callable[[], object]) -> int:
    """How many functions of Python this work calls in this thread."""
    calls = 0

    def note(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Statements that this process sends to Postgres while the block runs."""
    statements = list[str]()
    execute = psycopg.Cursor.execute

    def record(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        statements.append(str(query))
        return execute(cursor, query, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", record)
        yield statements
