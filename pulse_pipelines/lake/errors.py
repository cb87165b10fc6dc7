"""Errors of the catalog, as Iceberg's clients tell them apart; others' things are reported as not found."""

from pulse_pipelines.lake.names import Levels, written
from pulse_resources.errors import AlreadyExists, Conflict, Forbidden, NotFound, UserError


class NoSuchNamespace(NotFound):
    pass


class NoSuchTable(NotFound):
    pass


class NoSuchView(NotFound):
    pass


class NameTaken(AlreadyExists):
    pass


class NamespaceNotEmpty(Conflict):
    pass


class CommitFailed(Conflict):
    pass


class ReadOnly(Forbidden):
    pass


class Malformed(UserError):  # noqa: N818
    pass


class IllegalArgument(Malformed):
    pass


class KeyReused(UserError):  # noqa: N818
    pass


def no_namespace(namespace: Levels) -> NoSuchNamespace:
    """The error of a namespace that does not exist."""
    return NoSuchNamespace(f"Namespace does not exist: {written(namespace)[:300]}")


def no_table(namespace: Levels, table: str) -> NoSuchTable:
    """The error of a table that does not exist."""
    return NoSuchTable(f"Table does not exist: {written(namespace, table)[:300]}")


def no_view(namespace: Levels, view: str) -> NoSuchView:
    """The error of a view that does not exist."""
    return NoSuchView(f"View does not exist: {written(namespace, view)[:300]}")


def only_pulse() -> ReadOnly:
    """The error of a write to a namespace in which only Pulse writes."""
    return ReadOnly("In the namespace events only Pulse writes: create a namespace of your own")
