"""A tenant's own tables: creation and commits.

All changes go through `tables/commit.py`, those of several tables in one transaction where a client asks for
it. A commit is validated against the table's state at that time: after a lost race it is validated again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AddSnapshotUpdate, SetLocationUpdate

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import (
    catalog,
    metadata,
    names,
    namespaces,
    outline,
    parsing,
    paths,
    table_quotas,
    updates,
)
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.lake.catalog_change import CatalogChange, Files, Written, commit_files
from pulse_pipelines.lake.errors import CommitFailed, Malformed, NameTaken, no_table
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.names import Levels, written
from pulse_pipelines.lake.requests import Once
from pulse_pipelines.lake.updates import Requirements, Updates
from pulse_pipelines.tables.commit import Next, SwapLost, Work
from pulse_resources.iceberg import table_metadata
from pulse_resources.iceberg.document_weight import weight


@dataclass(frozen=True)
class Name:
    """Name of a table or view, as its tenant has it."""

    namespace: Levels
    name: str


@dataclass(frozen=True)
class TableCommit:
    """A client's commit to one table."""

    table: Name
    requirements: Requirements
    updates: Updates


def create(tenant: Tenant, name: Name, body: Mapping[str, Any], once: Once) -> Metadata:
    """Create an empty table.

    Raises:
        NameTaken: a table or view of this name exists.
        ReadOnly, NoSuchNamespace: as `namespaces.place_of`.
        Malformed: the request is invalid.
        QuotaExceeded: as `table_quotas.admit`.
    """
    once.check(tenant)
    document = staged(tenant, name, body)
    return make(tenant, name, document, Kind.TABLE, once)


def make(tenant: Tenant, name: Name, document: Mapping[str, Any], kind: Kind, once: Once) -> Metadata:
    """Write the first metadata of a table or view, and commit it. Raises as `create`."""
    with Written(tenant) as new:
        return new.hold(enter(tenant, name, new.write(document["location"], 0, document), kind, once))


def staged(tenant: Tenant, name: Name, body: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a table to be created; nothing is written. Raises as `create`."""
    check_new(tenant, name, Kind.TABLE)
    location = paths.new_location(tenant)
    with updates.malformed_refused():
        outline.check(body, outline.NEW_TABLE)
        properties = {str(key): str(value) for key, value in dict(body.get("properties") or {}).items()}
        paths.check_properties(properties, location)
        created = new_table_metadata(
            Schema.model_validate(body.get("schema")),
            PartitionSpec.model_validate(body.get("partition-spec") or UNPARTITIONED_PARTITION_SPEC),
            SortOrder.model_validate(body.get("write-order") or UNSORTED_SORT_ORDER),
            location,
            {"format-version": "2"} | paths.defaults(location) | properties,
        )
        updates.check(created)
        document = updates.document(created)
        updates.with_defaults(document["schemas"][0], body.get("schema"))
    paths.check(tenant, document)
    return document


def check_new(tenant: Tenant, name: Name, kind: Kind) -> None:
    """Raise if the tenant cannot create a table or view of this name."""
    namespaces.place_of(tenant, name.namespace)
    catalog.properties(tenant, name.namespace)
    if not names.usable(name.name):
        raise Malformed("a table cannot have this name", fix="Use letters and digits")
    for existing in Kind:
        if catalog.find(tenant, name.namespace, name.name, existing):
            same = "" if existing is kind else " with same name"
            raise NameTaken(f"{existing.title()}{same} already exists: {shown(name)}", known=existing)


def shown(name: Name) -> str:
    """A name as it appears in messages."""
    return written(name.namespace, name.name)[:300]


def enter(
    tenant: Tenant, name: Name, first: Metadata, kind: Kind, once: Once, *, overwrite: bool = False
) -> Metadata:
    """Commit a table or view whose first metadata file is written. Raises as `create`.

    Args:
        overwrite: in place of one of this name, if there is one.
    """
    commit_files(_FirstCommit(tenant, once, [name.namespace], name, first, kind, overwrite))
    return first


@dataclass
class _FirstCommit(CatalogChange[Work]):
    """Enters a table or view whose first metadata file is written."""

    name: Name
    first: Metadata
    kind: Kind
    overwrite: bool

    def stage(self, lost: SwapLost | None) -> Work:
        tenant, name, old = self.tenant, self.name, None
        place = namespaces.place_of(tenant, name.namespace)
        if self.overwrite:
            old = catalog.find(tenant, name.namespace, name.name, self.kind)
        if lost is not None and old is None:
            check_new(tenant, name, self.kind)
        return Work([Next((place, name.name), old, self.first.at, self.kind)])


@dataclass
class _TableCommits(CatalogChange[Files]):
    """Applies commits to tables, all or none."""

    commits: Sequence[TableCommit]
    new_files: Written

    def stage(self, lost: SwapLost | None) -> Files:
        tenant, weight = self.tenant, _CommitWeight()
        # All are checked before any is written.
        following = [_next_document(tenant, item, weight) for item in self.commits]
        files = [self.new_files.write(*document[1:]) for document in following]
        tables = [
            Next((namespaces.place_of(tenant, item.table.namespace), item.table.name), old, file.at)
            for item, (old, *_), file in zip(self.commits, following, files, strict=True)
        ]
        return Files(tables, files)


def change(tenant: Tenant, changes: Sequence[TableCommit], once: Once) -> Sequence[Metadata]:
    """Apply commits to one or more tables, atomically.

    Raises:
        NoSuchTable, NoSuchNamespace, ReadOnly: a table does not exist, or is none of the tenant's own.
        NameTaken: a view has the name of a table to be created.
        CommitFailed: a table does not meet the requirements.
        Malformed: an update is invalid, or the tables are too large together.
        QuotaExceeded: as `table_quotas.admit`, `table_quotas.admit_bytes`.
    """
    for commit in changes:
        namespaces.place_of(tenant, commit.table.namespace)
    if len({commit.table for commit in changes}) < len(changes):
        raise Malformed("a table is named twice")
    once.check(tenant)
    if any(isinstance(update, AddSnapshotUpdate) for commit in changes for update in commit.updates):
        table_quotas.admit_bytes(tenant)

    new_in = [item.table.namespace for item in changes if updates.creates(item.requirements)]
    with Written(tenant) as new:
        work = commit_files(_TableCommits(tenant, once, new_in, changes, new))
        return [new.hold(file) for file in work.files]


@dataclass
class _CommitWeight:
    """Weight of the metadata that a commit to several tables has in memory."""

    size: int = 0
    weight: float = 0.0

    def add(self, content: bytes) -> None:
        self.size += len(content)
        parsing.check_small(self.size)
        self.weight += weight(content)
        if self.weight > parsing.TOGETHER:
            raise Malformed("the metadata of these tables is too large together", fix="Commit to fewer")


def _next_document(
    tenant: Tenant, requested: TableCommit, weight: _CommitWeight
) -> tuple[str | None, str, int, dict[str, Any]]:
    """The table's metadata location (None: it is created), its folder, the next version and its metadata."""
    name = requested.table
    old = catalog.find(tenant, name.namespace, name.name)
    if updates.creates(requested.requirements):
        if old is not None:
            raise CommitFailed("Requirement failed: table already exists")
        check_new(tenant, name, Kind.TABLE)
        current, location, number = None, _chosen(tenant, requested.updates), 0
    else:
        if old is None:
            raise no_table(name.namespace, name.name)
        current_metadata = metadata.read(tenant, old)
        weight.add(current_metadata.content)
        try:
            current, location = parsing.table(current_metadata.document()), current_metadata.location
        except updates.WRONG as error:  # its engines overwrote the file
            raise updates.wrong(error) from None
        number = (table_metadata.version(old) or 0) + 1
    updates.require(requested.requirements, current)
    following = updates.apply(current, requested.updates, old, location)
    document = updates.document(following)
    paths.check(tenant, document)
    return old, location, number, document


def _chosen(tenant: Tenant, table_updates: Updates) -> str:
    """The folder of a table that a commit creates: the one that `staged` returned to the client."""
    for update in table_updates:
        if isinstance(update, SetLocationUpdate) and paths.is_location(
            tenant, update.location.removesuffix("/")
        ):
            return update.location.removesuffix("/")
    return paths.new_location(tenant)
