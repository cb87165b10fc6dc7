"""Commits of clients: their requirements on a table, and their updates, applied to the table's metadata.

pyiceberg applies the updates, which are adjusted first (`adjusted.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pyiceberg.exceptions import CommitFailedException, ValidationError as Unfit
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import (
    TableMetadata,
    TableMetadataUtil,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
)
from pyiceberg.table.sorting import SortField
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    SetLocationUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import IcebergBaseModel

from pulse_pipelines.domain.schemas.columns import METADATA
from pulse_pipelines.lake import copied_parts, names, outline, parsing
from pulse_pipelines.lake.errors import CommitFailed, Malformed
from pulse_pipelines.lake.java_compat import TableIds

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
UPDATE_BYTES = 8_192
"""Bytes of a document that take as long to parse as an update to apply: each copies the metadata."""
MOST_ADDED = 100
"""Most schemas, specs and sort orders that a commit adds: each is a part of all later metadata."""
MOST_LISTED_ERRORS = 1_000
"""Errors of a document up to which its answer names the first: pydantic lists all, and other threads wait."""
_ADDED = (AddSchemaUpdate, AddPartitionSpecUpdate, AddSortOrderUpdate)
_SHOWN = 100
"""Characters of a column's name, and of its type, in an error."""
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
Requirements = tuple[TableRequirement, ...]
Updates = tuple[TableUpdate, ...]


def parsed(body: Mapping[str, Any]) -> tuple[Requirements, Updates]:
    """Parse the requirements and updates of a request. Raises Malformed."""
    with malformed_refused():
        outline.check(body, outline.COMMIT)
        if len(body.get("updates", ())) > MOST:
            raise Malformed(f"a commit has {MOST} updates at most")
        check_few(len(body.get("updates", ())))
        requirements = _REQUIREMENTS.validate_python(body.get("requirements", ()))
        updates = _UPDATES.validate_python(body.get("updates", ()))
    if sum(isinstance(update, _ADDED) for update in updates) > MOST_ADDED:
        raise Malformed(f"a commit adds {MOST_ADDED} schemas, partition specs and sort orders at most")
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and not names.usable(update.ref_name):
            raise Malformed(f"{update.ref_name[:100]!r} is not a name for a branch or tag")
    return requirements, updates


def check_few(count: int) -> None:
    """Raise Large, as `parsing.check_small`, if so many updates are not to be applied here."""
    parsing.check_small(count * UPDATE_BYTES)


def wrong(error: Exception) -> Malformed:
    """The error of a document that is not valid Iceberg."""
    if isinstance(error, ValidationError):
        if (count := error.error_count()) > MOST_LISTED_ERRORS:
            return Malformed(f"the document has {count:,} errors")
        first = error.errors(include_url=False, include_input=False)[0]
        return Malformed(f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg'][:300]}")
    return Malformed(f"Cannot be done: {str(error)[:300] or type(error).__name__}")


@contextmanager
def malformed_refused() -> Iterator[None]:
    """Turn the errors of a document that is not valid Iceberg into Malformed."""
    try:
        yield
    except WRONG as error:
        raise wrong(error) from None


def creates(requirements: Requirements) -> bool:
    """Whether the commit creates a table."""
    return any(isinstance(requirement, AssertCreate) for requirement in requirements)


def require(requirements: Requirements, current: TableMetadata | None) -> None:
    """Raise CommitFailed if the table does not meet the requirements."""
    for requirement in requirements:
        try:
            requirement.validate(current)
        except CommitFailedException as error:
            message = str(error).removeprefix("Requirement failed: ")
            for ours, java in _WORDS:
                message = message.replace(ours, java)
            raise CommitFailed(f"Requirement failed: {message[:300]}") from None


def apply(current: TableMetadata | None, updates: Updates, at: str | None, location: str) -> TableMetadata:
    """Compute the next metadata, without writing it.

    Args:
        current: None: this commit creates the table.
        at: location of `current`.
        location: of the table, as the catalog has it.

    Raises:
        Malformed: the updates do not fit the table.
    """
    copied_parts.check(current, updates)
    with malformed_refused():
        upgrades = [update for update in updates if isinstance(update, UpgradeFormatVersionUpdate)]
        base = _upgraded(current, [upgrade.format_version for upgrade in upgrades])
        ids = TableIds(current)
        following = update_table_metadata(
            base,
            (
                *(changed for update in updates for changed in ids.put_right(update)),
                SetLocationUpdate(location=location),
            ),
            enforce_validation=True,
            metadata_location=at,
        )
        check(following, current)
    return following


def check(following: TableMetadata, current: TableMetadata | None = None) -> None:
    """Raise ValueError if an engine could no longer read a table that it can read now.

    Args:
        current: None: the table is new here.
    """
    if unfit := _unfit(following) - (_unfit(current) if current else set()):
        raise ValueError(f"{min(unfit)}: Iceberg's Java library could no longer read the table")


def _unfit(metadata: TableMetadata) -> set[str]:
    """Names that are taken, and transforms in specs and sort orders that do not fit their column.

    Earlier specs and orders count, too. A column that a replaced table has again, with another type, keeps
    its id, and so its part in them.
    """
    schema = metadata.schema()
    field_ids = set(schema.field_ids)
    fields: list[PartitionField | SortField] = []
    for spec in metadata.partition_specs:
        fields += spec.fields
    for order in metadata.sort_orders:
        fields += order.fields

    @cache  # a struct of thousands of columns may be named thousands of times
    def described(number: int) -> str:
        return (
            f"{str(schema.find_column_name(number))[:_SHOWN]}, now {str(schema.find_type(number))[:_SHOWN]},"
        )

    return _name_conflicts(metadata) | {
        f"{described(field.source_id)} is in a partition spec or sort order as {field.transform}"
        for field in fields
        if field.source_id in field_ids
        and not isinstance(field.transform, UnknownTransform)
        and not field.transform.can_transform(schema.find_type(field.source_id))
    }


def _name_conflicts(metadata: TableMetadata) -> set[str]:
    """Columns with a name that engines need for something else, or that differ in case only."""
    schema = metadata.schema()
    ids: dict[str, int] = {}
    conflicts = {
        f"{field.name} is the name of a metadata column"
        for field in schema.fields
        if field.name.lower() in METADATA
    }
    for name in schema.column_names:
        if name.lower() in ids:
            conflicts.add(f"{name} is the name of another column, too, for engines that ignore case")
        ids[name.lower()] = schema.find_field(name).field_id
    for field in (field for spec in metadata.partition_specs for field in spec.fields):
        may_share = isinstance(field.transform, IdentityTransform | VoidTransform)
        column = ids.get(field.name.lower())
        if column is not None and not (may_share and column == field.source_id):
            conflicts.add(f"{field.name} is the name of a column and of a partition field")
    return conflicts


def document(metadata: TableMetadata) -> dict[str, Any]:
    """A table's metadata as JSON for its file: pyiceberg itself does not write version 3 yet."""
    content: dict[str, Any] = orjson.loads(IcebergBaseModel.model_dump_json(metadata))
    return content | _rows(metadata.format_version, content)


def with_defaults(type_: Any, requested: Any) -> None:
    """Restore the defaults of columns, which pyiceberg drops when it assigns field ids.

    Args:
        type_: of a schema that was parsed from `requested` (JSON); changed in place.
    """
    if not isinstance(type_, dict) or not isinstance(requested, dict):
        return
    for column, requested_column in zip(type_.get("fields", ()), requested.get("fields", ()), strict=False):
        column |= {
            name: requested_column[name] for name in _DEFAULTS if requested_column.get(name) is not None
        }
        with_defaults(column["type"], requested_column["type"])
    for part in ("element", "key", "value"):
        with_defaults(type_.get(part), requested.get(part))


def _rows(version: int, content: Mapping[str, Any]) -> dict[str, int]:
    """The next row id, which tables of version 3 have from the beginning."""
    return {"next-row-id": content.get("next-row-id") or 0} if version == NEWEST else {}


def _upgraded(current: TableMetadata | None, versions: Sequence[int]) -> TableMetadata:
    """The base of the updates, in the highest format version that they ask for."""
    has = current.format_version if current else 1
    for version in versions:
        if version > NEWEST:
            raise ValueError(f"Unsupported table format version: {version}")
        if version < has:
            raise ValueError(f"Cannot downgrade v{has} table to v{version}")
    highest = max(versions, default=has)
    if current is None:
        return _EMPTY[highest].model_construct(last_column_id=-1, schema=Schema(), format_version=highest)
    if highest == has:
        return current
    later = document(current) | {"format-version": highest}
    return TableMetadataUtil.parse_obj(later | _rows(highest, later))
