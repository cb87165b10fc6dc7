"""What is not there, as Iceberg's clients tell it apart; another tenant's is no different from nobody's."""

from pulse_pipelines.lake.names import Levels, written
from pulse_resources.errors import NotFound


class NoSuchNamespace(NotFound):
    pass


class NoSuchTable(NotFound):
    pass


def no_namespace(namespace: Levels) -> NoSuchNamespace:
    return NoSuchNamespace(f"Namespace does not exist: {written(namespace)[:300]}")


def no_table(namespace: Levels, table: str) -> NoSuchTable:
    return NoSuchTable(f"Table does not exist: {written(namespace, table)[:300]}")
