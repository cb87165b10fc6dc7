"""Updates of clients, adjusted where pyiceberg is more literal than Iceberg's Java library.

A schema that the table already has keeps its id; "last added" means added last by this commit; removing what
does not exist, or no longer exists, is not an error.
"""

from collections.abc import Iterator, Sequence

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPartitionStatisticsUpdate,
    SetStatisticsUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)

_LAST = -1


class TableIds:
    """Ids that a table has, and those that a commit has added so far."""

    def __init__(self, current: TableMetadata | None) -> None:
        self._properties = set(current.properties) if current else set()
        self._snapshots = {snapshot.snapshot_id for snapshot in current.snapshots} if current else set()
        self._statistics = {statistic.snapshot_id for statistic in current.statistics} if current else set()
        self._partitions = (
            {partition_statistic.snapshot_id for partition_statistic in current.partition_statistics}
            if current
            else set()
        )
        self._schemas = _Numbers("schema_id", current.schemas if current else ())
        self._specs = _Numbers("spec_id", current.partition_specs if current else ())
        self._orders = _Numbers("order_id", current.sort_orders if current else ())
        self._last = {"schema": _LAST, "spec": _LAST, "order": _LAST}

    def put_right(self, update: TableUpdate) -> Iterator[TableUpdate]:
        """The updates for pyiceberg that take the place of an update."""
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
                self._added(update)
                yield from self._removal(update)

    def _schema(self, update: AddSchemaUpdate) -> Iterator[TableUpdate]:
        """A schema with equal fields keeps its id; a different one with a known id gets the next id."""
        number, is_new = self._schemas.add(update.schema_)
        self._last["schema"] = number
        if is_new:
            yield AddSchemaUpdate(schema=update.schema_.model_copy(update={"schema_id": number}))

    def _spec(self, update: AddPartitionSpecUpdate) -> Iterator[TableUpdate]:
        """As `_schema`."""
        number, is_new = self._specs.add(update.spec)
        self._last["spec"] = number
        if is_new:
            yield update.model_copy(update={"spec": update.spec.model_copy(update={"spec_id": number})})

    def _order(self, update: AddSortOrderUpdate) -> Iterator[TableUpdate]:
        """As `_schema`."""
        number, is_new = self._orders.add(update.sort_order)
        self._last["order"] = number
        if is_new:
            order = update.sort_order.model_copy(update={"order_id": number})
            yield update.model_copy(update={"sort_order": order})

    def _added(self, update: TableUpdate) -> None:
        match update:
            case AddSnapshotUpdate():
                self._snapshots.add(update.snapshot.snapshot_id)
            case SetStatisticsUpdate():
                self._statistics.add(update.statistics.snapshot_id)
            case SetPartitionStatisticsUpdate():
                self._partitions.add(update.partition_statistics.snapshot_id)

    def _removal(self, update: TableUpdate) -> Iterator[TableUpdate]:
        """Removing something that does not exist, or no longer exists, is not an error."""
        match update:
            case RemovePropertiesUpdate():
                yield RemovePropertiesUpdate(removals=[n for n in update.removals if n in self._properties])
            case RemoveSnapshotsUpdate():
                removed = [number for number in update.snapshot_ids if number in self._snapshots]
                self._snapshots.difference_update(removed)
                self._statistics.difference_update(removed)  # pyiceberg removes them with their snapshot
                yield update.model_copy(update={"snapshot_ids": removed})
            case RemoveStatisticsUpdate():
                yield from self._once(update, self._statistics)
            case RemovePartitionStatisticsUpdate():
                yield from self._once(update, self._partitions)
            case _:
                yield update

    def _once(
        self, update: RemoveStatisticsUpdate | RemovePartitionStatisticsUpdate, ids: set[int]
    ) -> Iterator[TableUpdate]:
        if update.snapshot_id in ids:
            ids.remove(update.snapshot_id)
            yield update

    def _of_last(self, kind: str) -> int:
        if self._last[kind] == _LAST:
            raise ValueError(f"no {kind} was added that could be the current one")
        return self._last[kind]


class _Numbers:
    """Ids of schemas, specs or orders by their content: to compare each with all takes minutes."""

    def __init__(
        self, id_name: str, present: Sequence[Schema] | Sequence[PartitionSpec] | Sequence[SortOrder]
    ):
        self._id_name, self._present = id_name, present
        self._by_content: dict[str, int] | None = None
        self._taken = {getattr(entry, id_name) for entry in present}

    def add(self, entry: Schema | PartitionSpec | SortOrder) -> tuple[int, bool]:
        """The id of an equal one, or the asked or the next free one; and whether there is none equal."""
        if self._by_content is None:
            self._by_content = {}
            for present in self._present:
                self._by_content.setdefault(self._content(present), getattr(present, self._id_name))
        content, requested = self._content(entry), getattr(entry, self._id_name)
        if content in self._by_content:
            return self._by_content[content], False
        number = requested if requested not in self._taken else max(self._taken) + 1
        self._by_content[content] = number
        self._taken.add(number)
        return number, True

    def _content(self, entry: Schema | PartitionSpec | SortOrder) -> str:
        return entry.model_dump_json(exclude={self._id_name})
