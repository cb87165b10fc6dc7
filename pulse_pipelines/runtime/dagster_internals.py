"""Private Dagster symbols that definitions use, in one place.

The other modules of this package import theirs themselves. Each symbol has a canary test in
`tests/runtime/test_private_symbols.py`, which names the symbol when an upgrade moves it.
"""

from dagster._core.errors import DagsterUserCodeUnreachableError as DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEventBatchMetadata as DagsterEventBatchMetadata
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecord as AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus as AssetCheckExecutionRecordStatus,
)
from dagster._grpc.client import DagsterGrpcClient as DagsterGrpcClient
