"""Dagster's code server: runs are copies of a process that has imported everything, loads are tried again.

Left to itself, Dagster starts an interpreter for each run, which imports for two to three seconds of a core
before the run's first step. Here runs are forked (`multiprocessing`'s fork server) and begin at once.

Nor does Dagster try again what it could not load, say because Postgres was away for a moment: until somebody
reloads it by hand no sensor runs, and nothing is ingested. And to reload means for it to start another
server; here it means to make the definitions anew: what changes while it runs is the registry, not the code.

Runs are children of the server and end with it. One that was killed with it would count as running for ever,
and against the limits on runs: of two such batches no third one would begin. So a server first reports those.

It listens on a socket in a folder that is closed to others: who may ask it, runs code as its user.
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
from pathlib import Path

import grpc
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.utils import FuturesAwareThreadPoolExecutor
from dagster._grpc.__generated__ import dagster_api_pb2
from dagster._grpc.server import DagsterApiServer, DagsterGrpcServer, LoadedRepositories
from dagster._utils.log import configure_loggers

from pulse_pipelines.runtime.warm_up import warm_up

LOOK_S = 10.0
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
    multiprocessing.forkserver.ensure_running()  # it imports while this process does
    _report_dead_runs()
    threads = FuturesAwareThreadPoolExecutor()
    server = _Server(options.module, ended, threads, context)
    threading.Thread(target=server.load_in_the_end, name="load", daemon=True).start()
    warming = context.Process(target=warm_up, name="warm-up", daemon=True)
    threading.Thread(target=warming.start, name="warm-up", daemon=True).start()  # it waits for the imports
    _close(options.socket.parent)
    served = DagsterGrpcServer(ended, server, _log, threads, socket=str(options.socket))
    served.serve()  # type: ignore[no-untyped-call]


def _close(folder: Path) -> None:
    """Make a folder that nobody else may enter.

    Raises:
        PermissionError: it is somebody else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user, who could stand in for the code server")
    folder.chmod(0o700)


def _report_dead_runs() -> None:
    """Those that began under the server before; of one that did not begin Dagster itself takes care."""
    with DagsterInstance.get() as instance:
        for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED])):
            instance.report_run_failed(run, "The code server ended, and this run with it.")


class _Server(DagsterApiServer):
    def __init__(
        self,
        module: str,
        ended: threading.Event,
        threads: FuturesAwareThreadPoolExecutor,
        context: multiprocessing.context.ForkServerContext,
    ) -> None:
        folder = str(Path.cwd())
        target = LoadableTargetOrigin(
            executable_path=sys.executable, working_directory=folder, module_name=module
        )
        super().__init__(ended, _log, threads, target, lazy_load_user_code=True)
        self._mp_ctx = context  # type: ignore[assignment]

    def load_in_the_end(self) -> None:
        """Until the definitions are loaded, try again."""
        while self._loaded_repositories is None:
            time.sleep(LOOK_S)
            self._reload()

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
            except Exception:  # whatever it was, what is loaded stays
                _log.exception("The definitions could not be loaded")
                return
            self._loaded_repositories = loaded
            self._serializable_load_error = None
            self._server_id = str(uuid.uuid4())  # by this, others notice


if __name__ == "__main__":
    main(sys.argv[1:])
