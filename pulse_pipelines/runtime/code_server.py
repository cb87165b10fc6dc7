"""Dagster code server: forks runs from a process that has imported everything, and retries failed loads.

Dagster itself starts an interpreter for each run, which spends two to three seconds of a core on imports
before the first step. Here runs are forked (`multiprocessing`'s fork server) and begin at once.

Nor does Dagster retry a failed load, for example when Postgres was away for a moment: until somebody reloads
by hand, no sensor runs and nothing is ingested. And its reload starts another server; this one rebuilds the
definitions only, since what changes at run time is the registry, not the code.

Runs are children of the server and end with it. A run killed with it would count as running permanently, also
against the limits on runs: after two such batches no third one would begin. So a server first reports those,
and later such as count as starting without a process, which Dagster gives up by the clock alone.

It listens on a socket in a folder closed to other users: whoever can call it runs code as its user.
"""

import argparse
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import grpc
from dagster import AssetKey, DagsterInstance, DagsterRunStatus, RepositoryDefinition, RunsFilter
from dagster._core.remote_origin import RemoteRepositoryOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.utils import FuturesAwareThreadPoolExecutor
from dagster._grpc.__generated__ import dagster_api_pb2
from dagster._grpc.server import DagsterApiServer, DagsterGrpcServer, LoadedRepositories
from dagster._grpc.types import ExecutionPlanSnapshotArgs, JobSubsetSnapshotArgs
from dagster._serdes import deserialize_value
from dagster._utils.error import serializable_error_info_from_exc_info
from dagster._utils.log import configure_loggers

from pulse_pipelines.runtime import run_processes, run_scope
from pulse_pipelines.runtime.parts import PartedSnapshot
from pulse_pipelines.runtime.parts_file import PartsFile
from pulse_pipelines.runtime.storage import PooledStorage
from pulse_pipelines.runtime.warm_up import warm_up
from pulse_resources.settings import load_settings

CHECK_INTERVAL_S = 10.0
LOST_S = 120.0
"""After so many seconds without a process a run that counts as starting is lost: the daemon died that was to
request it. A run with a process may take longer, as on a machine that is too busy."""
FORKED = "pulse_pipelines.runtime.forked"
_log = logging.getLogger("dagster.code_server")


def main(arguments: list[str]) -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--module", required=True, help="what the code location loads")
    parser.add_argument(
        "--socket", required=True, type=Path, help="where to listen; its folder is ours alone"
    )
    parser.add_argument("--log-level", default="warning")
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    configure_loggers(log_level=options.log_level.upper())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([options.module, FORKED])
    multiprocessing.forkserver.ensure_running()  # it imports in parallel with this process
    _report_dead_runs()
    threads = FuturesAwareThreadPoolExecutor()
    _close(options.socket.parent)
    server = _Server(
        options.module, PartsFile(options.socket.with_name("parts.sqlite")), ended, threads, context
    )
    run_processes.tell(server.runs_with_process)
    threading.Thread(target=server.load_until_done, name="load", daemon=True).start()
    threading.Thread(target=server.watch_runs, name="watch", daemon=True).start()
    threading.Thread(target=_add_indexes, name="indexes", daemon=True).start()
    warming = context.Process(target=warm_up, name="warm-up", daemon=True)
    threading.Thread(target=warming.start, name="warm-up", daemon=True).start()  # it waits for the imports
    served = DagsterGrpcServer(ended, server, _log, threads, socket=str(options.socket))
    served.serve()  # type: ignore[no-untyped-call]


def _close(folder: Path) -> None:
    """Make a folder that no other user may enter.

    Raises:
        PermissionError: the folder belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user, who could stand in for the code server")
    folder.chmod(0o700)


def _report_dead_runs() -> None:
    """Report runs of the previous server as failed; one that is requested only now will not begin."""
    statuses = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
    with DagsterInstance.get() as instance:
        for run in instance.get_runs(RunsFilter(statuses=statuses)):
            instance.report_run_failed(run, "The code server ended, and this run with it.")


def _add_indexes() -> None:
    """Without them everything works, and takes longer the more batches there were."""
    try:
        PooledStorage(load_settings().postgres.dagster_url()).add_indexes()
    except Exception:
        _log.exception("Dagster's tables got no indexes")


class LostRuns:
    """Starting runs without a process, and since when, as seen from here: clocks may be wrong."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def among(self, without: Set[str], now: float) -> set[str]:
        """The lost ones among all runs `without` a process."""
        self._since = {run: self._since.get(run, now) for run in without}
        return {run for run, since in self._since.items() if now - since > LOST_S}


class _Runs:
    """The fork server's context, whose processes know which run they are for."""

    def __init__(self, context: multiprocessing.context.ForkServerContext) -> None:
        self._context = context
        self.Event, self.Queue = context.Event, context.Queue  # Dagster's names

    def Process(self, *, target: Callable[..., None], args: Sequence[Any]) -> BaseProcess:  # noqa: N802
        return self._context.Process(target=run_scope.start, args=[target, *args])


class _Server(DagsterApiServer):
    def __init__(
        self,
        module: str,
        file: PartsFile,
        ended: threading.Event,
        threads: FuturesAwareThreadPoolExecutor,
        context: multiprocessing.context.ForkServerContext,
    ) -> None:
        folder = str(Path.cwd())
        target = LoadableTargetOrigin(
            executable_path=sys.executable, working_directory=folder, module_name=module
        )
        self._module, self._file, self._current = module, file, True
        self._snapshot: PartedSnapshot | None = None
        self._selection = threading.local()
        run_scope.build_parted()
        super().__init__(ended, _log, threads, target, lazy_load_user_code=True)
        self._mp_ctx = _Runs(context)  # type: ignore[assignment]
        if self._loaded_repositories is not None:
            try:
                self._build_parts(self._loaded_repositories)
            except Exception:
                _log.exception("The definitions could not be loaded")
                self._loaded_repositories = None
                self._serializable_load_error = serializable_error_info_from_exc_info(sys.exc_info())

    def load_until_done(self) -> None:
        """Retry until the definitions are loaded, and as they are now."""
        while self._loaded_repositories is None or not self._current:
            time.sleep(CHECK_INTERVAL_S)
            self._reload()

    def watch_runs(self) -> None:
        """Report lost runs as failed. Never returns; Dagster reports those whose process has ended."""
        lost = LostRuns()
        while True:
            try:
                with DagsterInstance.get() as instance:  # kept: to open one takes a connection and settings
                    while True:
                        time.sleep(CHECK_INTERVAL_S)
                        self._report_lost(instance, lost)
            except Exception:  # Postgres may be away
                _log.exception("Whether runs are lost could not be checked")
                time.sleep(CHECK_INTERVAL_S)

    def runs_with_process(self) -> set[str]:
        """Ids of the runs that have a process, or whose process has just ended."""
        with self._execution_lock:  # held while a process is made
            return set(self._executions)

    def _report_lost(self, instance: DagsterInstance, lost: LostRuns) -> None:
        starting = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTING]))
        without = {run.run_id for run in starting} - self.runs_with_process()
        lost_ids = lost.among(without, time.monotonic())
        for run in starting:
            if run.run_id in lost_ids:
                instance.report_run_failed(run, f"No process began this run within {LOST_S:.0f} s.")

    def ReloadCode(  # noqa: N802 - gRPC's name
        self, _request: dagster_api_pb2.ReloadCodeRequest, _context: grpc.ServicerContext
    ) -> dagster_api_pb2.ReloadCodeReply:
        self._reload()
        return dagster_api_pb2.ReloadCodeReply()

    def _reload(self) -> None:
        with self._reload_lock:
            try:
                loaded = LoadedRepositories(
                    self._loadable_target_origin,
                    self._container_image,
                    self._entry_point,
                    self._container_context,
                )
                self._build_parts(loaded)
            except Exception:  # whatever failed, the loaded definitions stay
                _log.exception("The definitions could not be loaded")
                return
            self._loaded_repositories = loaded
            self._serializable_load_error = None
            self._server_id = str(uuid.uuid4())  # a new id tells clients of the change

    def _build_parts(self, loaded: LoadedRepositories) -> None:
        parts = getattr(import_module(self._module), "PARTS", None)
        if parts is None:
            return
        (definition,) = loaded.definitions_by_name.values()
        at_once = self._snapshot is None  # ingestion waits for this
        self._snapshot = self._snapshot or PartedSnapshot(parts, self._file)
        self._current = self._snapshot.refresh(definition, at_once=at_once)

    def _get_serialized_external_repository_data(
        self, request: dagster_api_pb2.ExternalRepositoryRequest
    ) -> str:
        if self._snapshot is None or self._loaded_repositories is None:
            return super()._get_serialized_external_repository_data(request)
        return self._snapshot.text()

    def _get_repo_for_origin(self, remote_repo_origin: RemoteRepositoryOrigin) -> RepositoryDefinition:
        keys: frozenset[AssetKey] = getattr(self._selection, "keys", frozenset())
        selected = self._snapshot.select(keys) if self._snapshot and keys else None
        return selected or super()._get_repo_for_origin(remote_repo_origin)

    @contextmanager
    def _selecting(self, selection: ExecutionPlanSnapshotArgs | JobSubsetSnapshotArgs) -> Iterator[None]:
        """Take definitions of the selected assets, in this thread."""
        checked = {check.asset_key for check in selection.asset_check_selection or ()}
        self._selection.keys = frozenset((selection.asset_selection or frozenset()) | checked)
        try:
            yield
        finally:
            self._selection.keys = frozenset()

    def ExecutionPlanSnapshot(  # noqa: N802
        self, request: dagster_api_pb2.ExecutionPlanSnapshotRequest, _context: grpc.ServicerContext
    ) -> dagster_api_pb2.ExecutionPlanSnapshotReply:
        serialized = request.serialized_execution_plan_snapshot_args
        with self._selecting(deserialize_value(serialized, ExecutionPlanSnapshotArgs)):
            return super().ExecutionPlanSnapshot(request, _context)

    def ExternalPipelineSubsetSnapshot(  # noqa: N802
        self, request: dagster_api_pb2.ExternalPipelineSubsetSnapshotRequest, _context: grpc.ServicerContext
    ) -> dagster_api_pb2.ExternalPipelineSubsetSnapshotReply:
        serialized = request.serialized_pipeline_subset_snapshot_args
        with self._selecting(deserialize_value(serialized, JobSubsetSnapshotArgs)):
            return super().ExternalPipelineSubsetSnapshot(request, _context)


if __name__ == "__main__":
    main(sys.argv[1:])
