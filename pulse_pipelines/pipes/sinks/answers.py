"""Errors of a sink, without values and addresses."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pulse_resources.errors import Transient, UserError

_PLACE = re.compile(r"COPY pulse_rows, line (\d+)(?:, column ([^:]+):)?")
_NAMED = re.compile(r'"[^"]*"')
AGAIN = ("40", "53", "55P03", "57")
"""Classes of states that go by: serialization and deadlocks, resources, locks, an operator's intervention."""
_OF_ROWS = ("0A", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0")
"""Classes of states that a row is at fault for: values, constraints, limits (as of an index), functions."""
_BY_FUNCTION = ("exec_stmt_raise", "exec_stmt_assert")
"""Where Postgres raises what a function says, in words and under a state of its own."""


class LeftOut(psycopg.Error):
    """A row was not written, or not deleted, and no error was raised."""


class KeyTaken(psycopg.Error):
    """Another entity has the same key in the table."""


@contextmanager
def explained() -> Iterator[None]:
    """Convert errors of the sink's database.

    Raises:
        Transient: it does not answer, or not now.
        UserError: it refuses the statement.
    """
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if not state or state[:2] in ("08",) or state.startswith(AGAIN):
            raise Transient(f"the sink does not answer: {error_text(error)}") from None
        raise UserError(
            f"the sink refuses to be written: {error_text(error)}",
            fix="See what the table's columns, constraints and triggers, and the role's rights allow",
        ) from None


def error_text(error: psycopg.Error) -> str:
    """The text of an error without values."""
    of = error.diag
    if isinstance(error, LeftOut):
        return "a trigger or a rule leaves it out"
    if isinstance(error, KeyTaken):
        return "another entity has the same key in this table"
    if of.message_primary is None:
        return type(error).__name__
    if _is_by_function(error):
        return "a trigger refuses it"  # in words of its own, which may hold a value
    names = (("column", of.column_name), ("constraint", of.constraint_name), ("table", of.table_name))
    named = ", ".join(f"{label} {name}" for label, name in names if name)
    return _NAMED.sub("...", of.message_primary) + (f" ({named})" if named else "")


def reason(error: psycopg.Error) -> str:
    """Why a row cannot be written, without its values."""
    place = _PLACE.search(error.diag.context or "")
    column = place[2] if place and not error.diag.column_name else None
    return error_text(error) + (f" (column {column})" if column else "")


def is_of_row(error: psycopg.Error) -> bool:
    """Whether a row is at fault for an error: another row may be written.

    Not for a lost connection, what goes by, the role's rights, or a statement that cannot be run at all.
    """
    if isinstance(error, LeftOut | KeyTaken) or _is_by_function(error):
        return True
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return "row-level security" in (error.diag.message_primary or "")
    return (error.sqlstate or "").startswith(_OF_ROWS)


def _is_by_function(error: psycopg.Error) -> bool:
    return error.diag.source_function in _BY_FUNCTION
