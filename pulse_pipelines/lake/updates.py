"""Commits of clients: their requirements on a table, and their updates, applied to the table's metadata.

pyiceberg applies the updates. Where it is more literal than Iceberg's Java library the updates are adjusted
first: a schema that the table already has keeps its id; "last added" means added last by this commit.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import orjson
from pydantic import TypeAdapter, ValidationError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.exceptions import ValidationError as Unfit
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import (
    TableMetadata,
    TableMetadataUtil,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
)
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import IcebergBaseModel

from pulse_pipelines.lake import names
from pulse_pipelines.lake.errors import CommitFailed, Malformed

WRONG = (
    RecursionError,
    ValidationError,
    Unfit,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    NotImplementedError,
)
"""Exceptions of pyiceberg for an invalid document."""
NEWEST = 3
"""Highest supported version of the table format."""
_EMPTY: Mapping[int, type[TableMetadata]] = {1: TableMetadataV1, 2: TableMetadataV2, 3: TableMetadataV3}
MOST = 10_000
"""Most updates in a commit."""
_DEFAULTS = ("initial-default", "write-default")
_WORDS = (
    ("Table UUID does not match", "UUID does not match"),
    ("current schema id has changed", "current schema changed"),
    ("default spec id has changed", "default partition spec changed"),
    ("default sort order id has changed", "default sort order changed"),
    ("field id has changed", "field id changed"),
    ("partition id has changed", "partition id changed"),
    ("Table already exists", "table already exists"),
)
"""Messages of Iceberg's Java library, which clients search for."""
_REQUIREMENTS: TypeAdapter[tuple[TableRequirement, ...]] = TypeAdapter(tuple[TableRequirement, ...])
_UPDATES: TypeAdapter[tuple[TableUpdate, ...]] = TypeAdapter(tuple[TableUpdate, ...])
_LAST = -1
Requirements = tuple[TableRequirement, ...]
Updates = tuple[TableUpdate, ...]


def parsed(body: Mapping[str, Any]) -> tuple[Requirements, Updates]:
    """Parse the requirements and updates of a request. Raises Malformed."""
    try:
        requirements = _REQUIREMENTS.validate_python(body.get("requirements", ()))
        updates = _UPDATES.validate_python(body.get("updates", ()))
    except WRONG as error:
        raise wrong(error) from None
    if len(updates) > MOST:
        raise Malformed(f"a commit has {MOST} updates at most")
    for each in updates:
        if isinstance(each, SetSnapshotRefUpdate) and not names.usable(each.ref_name):
            raise Malformed(f"{each.ref_name[:100]!r} is no name for a branch or tag")
    return requirements, updates


def wrong(error: Exception) -> Malformed:
    """The error of a document that is not valid Iceberg."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return Malformed(f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg'][:300]}")
    return Malformed(f"Cannot be done: {str(error)[:300] or type(error).__name__}")


def creates(requirements: Requirements) -> bool:
    """Whether the commit creates a table."""
    return any(isinstance(each, AssertCreate) for each in requirements)


def require(requirements: Requirements, current: TableMetadata | None) -> None:
    """Raise CommitFailed if the table does not meet the requirements."""
    for each in requirements:
        try:
            each.validate(current)
        except CommitFailedException as error:
            said = str(error).removeprefix("Requirement failed: ")
            for ours, java in _WORDS:
                said = said.replace(ours, java)
            raise CommitFailed(f"Requirement failed: {said[:300]}") from None


def apply(current: TableMetadata | None, updates: Updates, at: str | None, location: str) -> TableMetadata:
    """Compute the next metadata, without writing it.

    Args:
        current: None: this commit creates the table.
        at: location of `current`.
        location: of the table, as the catalog has it.

    Raises:
        Malformed: the updates do not fit the table.
    """
    try:
        base = _upgraded(current, [update.format_version for update in updates if _upgrades(update)])
        known = _Known(current)
        following = update_table_metadata(
            base,
            (*(each for update in updates for each in known.put_right(update)), _at(location)),
            enforce_validation=True,
            metadata_location=at,
        )
    except WRONG as error:
        raise wrong(error) from None
    return following


def document(metadata: TableMetadata) -> dict[str, Any]:
    """A table's metadata as JSON for its file: pyiceberg itself does not write version 3 yet."""
    found: dict[str, Any] = orjson.loads(IcebergBaseModel.model_dump_json(metadata))
    return found | _rows(metadata.format_version, found)


def with_defaults(type_: Any, asked: Any) -> None:
    """Restore the defaults of columns, which pyiceberg drops when it assigns field ids.

    Args:
        type_: of a schema that was parsed from `asked` (JSON); changed in place.
    """
    if not isinstance(type_, dict) or not isinstance(asked, dict):
        return
    for each, given in zip(type_.get("fields", ()), asked.get("fields", ()), strict=False):
        each |= {name: given[name] for name in _DEFAULTS if given.get(name) is not None}
        with_defaults(each["type"], given["type"])
    for part in ("element", "key", "value"):
        with_defaults(type_.get(part), asked.get(part))


def _rows(version: int, found: Mapping[str, Any]) -> dict[str, int]:
    """The next row id, which tables of version 3 have from the beginning."""
    return {"next-row-id": found.get("next-row-id") or 0} if version == NEWEST else {}


def _upgrades(update: TableUpdate) -> TypeGuard[UpgradeFormatVersionUpdate]:
    return isinstance(update, UpgradeFormatVersionUpdate)


def _upgraded(current: TableMetadata | None, versions: Sequence[int]) -> TableMetadata:
    """The base of the updates, in the highest format version that they ask for."""
    has = current.format_version if current else 1
    for each in versions:
        if each > NEWEST:
            raise ValueError(f"Unsupported table format version: {each}")
        if each < has:
            raise ValueError(f"Cannot downgrade v{has} table to v{each}")
    version = max(versions, default=has)
    if current is None:
        return _EMPTY[version].model_construct(last_column_id=-1, schema=Schema(), format_version=version)
    if version == has:
        return current
    later = document(current) | {"format-version": version}
    return TableMetadataUtil.parse_obj(later | _rows(version, later))


def _at(location: str) -> SetLocationUpdate:
    return SetLocationUpdate(location=location)


def _number(asked: int, known: Sequence[int], same: Sequence[int]) -> int:
    """The id of an added schema, spec or order: that of an equal one, or the asked or the next free one."""
    return same[0] if same else asked if asked not in known else max(known) + 1


class _Known:
    """Ids that a table has, and those that a commit has added so far."""

    def __init__(self, current: TableMetadata | None) -> None:
        self._current = current
        self._properties = set(current.properties) if current else set()
        self._schemas: list[Schema] = list(current.schemas) if current else []
        self._specs: list[PartitionSpec] = list(current.partition_specs) if current else []
        self._orders: list[SortOrder] = list(current.sort_orders) if current else []
        self._last = {"schema": _LAST, "spec": _LAST, "order": _LAST}

    def put_right(self, update: TableUpdate) -> Iterator[TableUpdate]:
        """The updates that pyiceberg applies in place of an update."""
        match update:
            case AddSchemaUpdate():
                yield from self._schema(update)
            case AddPartitionSpecUpdate():
                yield from self._spec(update)
            case AddSortOrderUpdate():
                yield from self._order(update)
            case SetCurrentSchemaUpdate(schema_id=-1):
                yield update.model_copy(update={"schema_id": self._of_last("schema")})
            case SetDefaultSpecUpdate(spec_id=-1):
                yield update.model_copy(update={"spec_id": self._of_last("spec")})
            case SetDefaultSortOrderUpdate(sort_order_id=-1):
                yield update.model_copy(update={"sort_order_id": self._of_last("order")})
            case SetLocationUpdate() | UpgradeFormatVersionUpdate():
                pass  # the catalog sets locations; the format version is up to date by now
            case _:
                yield from self._removal(update)

    def _schema(self, update: AddSchemaUpdate) -> Iterator[TableUpdate]:
        """A schema with equal fields keeps its id; a different one with a known id gets the next id."""
        schema, numbers = update.schema_, [each.schema_id for each in self._schemas]
        same = [each.schema_id for each in self._schemas if each == schema]
        self._last["schema"] = number = _number(schema.schema_id, numbers, same)
        if not same:
            schema = schema.model_copy(update={"schema_id": number})
            self._schemas.append(schema)
            yield AddSchemaUpdate(schema=schema)

    def _spec(self, update: AddPartitionSpecUpdate) -> Iterator[TableUpdate]:
        """As `_schema`."""
        spec, numbers = update.spec, [each.spec_id for each in self._specs]
        same = [each.spec_id for each in self._specs if each.fields == spec.fields]
        self._last["spec"] = number = _number(spec.spec_id, numbers, same)
        if not same:
            spec = spec.model_copy(update={"spec_id": number})
            self._specs.append(spec)
            yield update.model_copy(update={"spec": spec})

    def _order(self, update: AddSortOrderUpdate) -> Iterator[TableUpdate]:
        """As `_schema`."""
        order, numbers = update.sort_order, [each.order_id for each in self._orders]
        same = [each.order_id for each in self._orders if each.fields == order.fields]
        self._last["order"] = number = _number(order.order_id, numbers, same)
        if not same:
            order = order.model_copy(update={"order_id": number})
            self._orders.append(order)
            yield update.model_copy(update={"sort_order": order})

    def _removal(self, update: TableUpdate) -> Iterator[TableUpdate]:
        """Removing something that does not exist is no error."""
        current = self._current
        match update:
            case RemovePropertiesUpdate():
                yield RemovePropertiesUpdate(removals=[n for n in update.removals if n in self._properties])
            case RemoveSnapshotsUpdate():
                known = {each.snapshot_id for each in current.snapshots} if current else set()
                yield update.model_copy(
                    update={"snapshot_ids": [i for i in update.snapshot_ids if i in known]}
                )
            case RemoveStatisticsUpdate():
                if current and any(s.snapshot_id == update.snapshot_id for s in current.statistics):
                    yield update
            case RemovePartitionStatisticsUpdate():
                if current and any(s.snapshot_id == update.snapshot_id for s in current.partition_statistics):
                    yield update
            case _:
                yield update

    def _of_last(self, kind: str) -> int:
        if self._last[kind] == _LAST:
            raise ValueError(f"no {kind} was added that could be the current one")
        return self._last[kind]
