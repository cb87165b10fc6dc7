"""Canaries: each private symbol of Dagster's and Spark's that Pulse uses is there, and as it is used.

When an upgrade breaks one, its name is in the failure; what uses it stands in the module that the failure
names, in `runtime/` (Spark's client: `pulse_resources/spark/__init__.py`).
"""

import ast
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster._api import snapshot_repository  # noqa: F401 - a module is resolved only once it is imported
from dagster._grpc.server import DagsterApiServer
from dagster_postgres.schedule_storage import PostgresScheduleStorage
from dagster_postgres.storage import DagsterPostgresStorage
from pyspark.sql.connect.client import SparkConnectClient
from pyspark.sql.connect.dataframe import DataFrame

ROOT = Path(__file__).parents[2]
HOME = "pulse_pipelines/runtime/"


def takes(*names: str) -> Callable[[Any], bool]:
    """Whether it can be called with these arguments."""
    return lambda symbol: set(names) <= set(inspect.signature(symbol).parameters)


def has(*names: str) -> Callable[[Any], bool]:
    return lambda symbol: all(hasattr(symbol, name) for name in names)


CANARIES: dict[str, Callable[[Any], bool]] = {
    "dagster._api:snapshot_repository": has("deserialize_value"),
    "dagster._check:CheckError": lambda symbol: issubclass(symbol, Exception),
    "dagster._config.config_type:ConfigBoolInstance": has("kind"),
    "dagster._config.config_type:ConfigIntInstance": has("kind"),
    "dagster._config.config_type:ConfigStringInstance": has("kind"),
    "dagster._config.pythonic_config:conversion_utils": has("StringSource", "IntSource", "BoolSource"),
    "dagster._core.definitions.assets.definition.assets_definition:unique_id_from_asset_and_check_keys": (
        takes("entity_keys")
    ),
    "dagster._core.errors:DagsterUserCodeUnreachableError": lambda symbol: issubclass(symbol, Exception),
    "dagster._core.events:DagsterEventBatchMetadata": takes("id", "is_end"),
    "dagster._core.remote_origin:RemoteRepositoryOrigin": callable,
    "dagster._core.remote_representation.external_data:RepositorySnap": has(
        "from_def", "asset_nodes", "asset_check_nodes", "resources"
    ),
    "dagster._core.remote_representation.external_data:asset_check_node_snaps_from_repo": takes("repo"),
    "dagster._core.remote_representation.external_data:asset_node_snaps_from_repo": takes("repo"),
    "dagster._core.scheduler.instigation:InstigatorState": has("instigator_data"),
    "dagster._core.storage.asset_check_execution_record:AssetCheckExecutionRecord": has(
        "event", "status", "from_db_row"
    ),
    "dagster._core.storage.asset_check_execution_record:AssetCheckExecutionRecordStatus": has("SUCCEEDED"),
    "dagster._core.storage.asset_check_execution_record:COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES": len,
    "dagster._core.storage.local_compute_log_manager:LocalComputeLogManager": has("get_captured_local_path"),
    "dagster._core.types.loadable_target_origin:LoadableTargetOrigin": lambda symbol: (
        symbol(executable_path="python", working_directory="/", module_name="m").module_name == "m"
    ),
    "dagster._core.utils:FuturesAwareThreadPoolExecutor": has("submit"),
    "dagster._core.workspace.context:WorkspaceProcessContext": has("create_request_context"),
    "dagster._core.workspace.context:WorkspaceRequestContext": has("read_only", "has_permission"),
    "dagster._core.workspace.load_target:WorkspaceFileTarget": lambda symbol: symbol(paths=["a"]).paths,
    "dagster._daemon.cli:create_dagster_daemon_cli": callable,
    "dagster._daemon:sensor": has("get_elapsed", "MIN_INTERVAL_LOOP_TIME"),
    "dagster._grpc.__generated__:dagster_api_pb2": has("ReloadCodeRequest", "ReloadCodeReply"),
    "dagster._grpc.client:DagsterGrpcClient": takes("socket"),
    "dagster._grpc.server:DagsterApiServer": has(
        "ReloadCode",
        "ExecutionPlanSnapshot",
        "ExternalPipelineSubsetSnapshot",
        "_get_repo_for_origin",
        "_get_serialized_external_repository_data",
    ),
    "dagster._grpc.server:DagsterGrpcServer": callable,
    "dagster._grpc.server:LoadedRepositories": callable,
    "dagster._core.instance.ref:InstanceRef": has("from_dir"),
    "dagster._grpc.types:ExecuteExternalJobArgs": has("job_origin", "run_id", "instance_ref"),
    "dagster._grpc.types:ExecutionPlanSnapshotArgs": has("asset_selection", "asset_check_selection"),
    "dagster._grpc.types:JobSubsetSnapshotArgs": has("asset_selection", "asset_check_selection"),
    "dagster._record:copy": takes("record"),
    "dagster._serdes:serialize_value": takes("val"),
    "dagster._utils.error:serializable_error_info_from_exc_info": takes("exc_info"),
    "dagster._serdes:deserialize_value": takes("val", "as_type"),
    "dagster._serdes:ConfigurableClassData": callable,
    "dagster._utils.log:configure_loggers": callable,
}
"""What is imported, and what makes it what it is used as."""

ATTRIBUTES: dict[type, tuple[str, ...]] = {
    DagsterApiServer: (
        "_mp_ctx",
        "_executions",
        "_execution_lock",
        "_loaded_repositories",
        "_reload_lock",
        "_loadable_target_origin",
        "_container_image",
        "_entry_point",
        "_container_context",
        "_serializable_load_error",
        "_server_id",
    ),
    DagsterPostgresStorage: ("_run_storage", "_event_log_storage", "_schedule_storage"),
    PostgresScheduleStorage: (
        "has_instigators_table",
        "_has_instigators_table",
        "has_secondary_index_table",
        "has_built_index",
    ),
    SparkConnectClient: ("_cleanup_ml_cache",),
    DataFrame: ("_explain_string",),
}


def imported() -> Iterator[tuple[str, str]]:
    """Private symbols, as `module:name`, and the file that imports each."""
    for package in ("pulse_api", "pulse_pipelines", "pulse_resources"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ImportFrom) or node.module is None:
                    continue
                library, *inner = node.module.split(".")
                for name in (alias.name for alias in node.names):
                    if library in ("dagster", "pyspark") and any(
                        part.startswith("_") for part in (*inner, name)
                    ):
                        yield f"{node.module}:{name}", str(path.relative_to(ROOT))


def test_private_symbols_stand_in_one_room_and_have_canaries() -> None:
    symbols = list(imported())
    assert {path for _, path in symbols if not path.startswith(HOME)} == set()
    assert {symbol for symbol, _ in symbols} == set(CANARIES)


@pytest.mark.parametrize("symbol", CANARIES)
def test_a_private_symbol_passes_its_canary(symbol: str) -> None:
    assert CANARIES[symbol](pkgutil.resolve_name(symbol)), symbol


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in ATTRIBUTES.items() for name in names]
)
def test_a_private_attribute_is_there(owner: type, name: str) -> None:
    assert hasattr(owner, name) or f"self.{name}" in inspect.getsource(owner), f"{owner.__name__}.{name}"
