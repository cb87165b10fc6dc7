"""Dagster's internals that definitions use beside its public API, in one place.

What this room's other modules build on they import themselves. Each of these symbols has a canary in
`tests/runtime/test_private_symbols.py`: an upgrade that moves one says so there, by name.
"""

from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEventBatchMetadata
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster._grpc.client import DagsterGrpcClient

__all__ = [
    "COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES",
    "AssetCheckExecutionRecord",
    "AssetCheckExecutionRecordStatus",
    "DagsterEventBatchMetadata",
    "DagsterGrpcClient",
    "DagsterUserCodeUnreachableError",
]
