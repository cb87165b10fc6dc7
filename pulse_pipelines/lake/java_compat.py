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
        self._schemas: list[Schema] = list(current.schemas) if current else []
        self._specs: list[PartitionSpec] = list(current.partition_specs) if current else []
        self._orders: list[SortOrder] = list(current.sort_orders) if current else []
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
        schema, numbers = update.schema_, [schema.schema_id for schema in self._schemas]
        same = [each.schema_id for each in self._schemas if each == schema]
        self._last["schema"] = number = _number(schema.schema_id, numbers, same)
        if not same:
            schema = schema.model_copy(update={"schema_id": number})
            self._schemas.append(schema)
            yield AddSchemaUpdate(schema=schema)

    def _spec(self, update: AddPartitionSpecUpdate) -> Iterator[TableUpdate]:
        """As `_schema`."""
        spec, numbers = update.spec, [spec.spec_id for spec in self._specs]
        same = [each.spec_id for each in self._specs if each.fields == spec.fields]
        self._last["spec"] = number = _number(spec.spec_id, numbers, same)
        if not same:
            spec = spec.model_copy(update={"spec_id": number})
            self._specs.append(spec)
            yield update.model_copy(update={"spec": spec})

    def _order(self, update: AddSortOrderUpdate) -> Iterator[TableUpdate]:
        """As `_schema`."""
        order, numbers = update.sort_order, [order.order_id for order in self._orders]
        same = [each.order_id for each in self._orders if each.fields == order.fields]
        self._last["order"] = number = _number(order.order_id, numbers, same)
        if not same:
            order = order.model_copy(update={"order_id": number})
            self._orders.append(order)
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


def _number(requested: int, existing: Sequence[int], same: Sequence[int]) -> int:
    """The id of an added schema, spec or order: that of an equal one, or the asked or the next free one."""
    return same[0] if same else requested if requested not in existing else max(existing) + 1
