"""Commits of a client of the catalog: what they lock, what they count, and the metadata files they write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import psycopg

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import metadata, namespaces, parsing, table_quotas
from pulse_pipelines.lake.catalog import ROLE
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.names import Levels
from pulse_pipelines.lake.requests import Once
from pulse_pipelines.tables.commit import Change, Work, commit
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.table_metadata import folder

W = TypeVar("W", bound=Work)


@dataclass(frozen=True)
class Files(Work):
    """Tables to commit, and the metadata files that were written for them."""

    files: Sequence[Metadata]


class Written:
    """Metadata files written for a commit; those that were not committed are removed when the block ends."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._idle: dict[str, Metadata] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        # Files that Postgres may have committed, with an unknown outcome, stay.
        if not isinstance(error, psycopg.OperationalError):
            for file in self._idle.values():
                metadata.remove(file)

    def write(self, location: str, version: int, document: Mapping[str, Any]) -> Metadata:
        """Write a metadata file. Raises as `metadata.write`."""
        file = metadata.write(self._tenant, location, version, document)
        self._idle[file.at] = file
        return file

    def hold(self, file: Metadata) -> Metadata:
        """Mark a file as committed."""
        self._idle.pop(file.at, None)
        return file


@dataclass
class CatalogChange(Change[W]):
    """A change that a client of the catalog asks for, whose metadata files are written when it is staged."""

    once: Once
    new_in: Sequence[Levels]
    """Namespaces in which something is created; locked against drops until the commit."""
    point = "lake"
    role = ROLE

    def lock(self, connection: postgres.Connection, work: W) -> None:
        self.once.record(connection)
        moves = [table for table in work.tables if not table.old or folder(table.old) != folder(table.new)]
        if moves:
            new = sum(move.old is None for move in moves)
            table_quotas.admit(connection, self.tenant, [folder(move.new) for move in moves], new)
        for namespace in sorted(set(self.new_in)):
            namespaces.hold(connection, namespace, namespaces.place_of(self.tenant, namespace))

    def was_committed(self, work: W) -> bool:
        following = work.tables[0]
        with postgres.tenant_transaction(ROLE, self.tenant.tenant_id) as connection:
            current = iceberg.find_location(connection, following.table)
        if current is None or current == following.new:
            return current is not None
        with parsing.only_small(False):  # carried out again, a commit would seem to have failed
            return following.new in table_metadata.log(metadata.read(self.tenant, current).document())


def commit_files(change: CatalogChange[W]) -> W:
    """Commit staged metadata files. Raises as `commit`."""
    work = commit(change)
    assert work is not None  # noqa: S101 - there always is something to commit
    return work
