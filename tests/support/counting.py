"""Costs that no clock measures: calls of functions, statements to Postgres."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
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
    """Statements that this thread sends to Postgres while the block runs."""
    statements, thread = list[str](), get_ident()
    execute = psycopg.Cursor.execute

    def record(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if get_ident() == thread:  # a pool prepares connections in threads of its own
            statements.append(str(query))
        return execute(cursor, query, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", record)
        yield statements
