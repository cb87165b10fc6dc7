"""Dagster's code server, which loads again what it could not load.

Left to itself it keeps the error of a load that failed, say because Postgres was away for a moment, until
somebody reloads it by hand; until then no sensor of the code location runs, and nothing is ingested.
"""

import argparse
import sys
import threading
import time

from dagster._api.list_repositories import sync_list_repositories_grpc
from dagster._cli import create_dagster_cli
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._grpc.client import DagsterGrpcClient

LOOK_S = 10.0
RELOAD_S = 120


def main(arguments: list[str]) -> None:
    """Serve until a signal; what is not an option of ours is `dagster code-server start`'s."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--module", required=True, help="what the code location loads")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    options, others = parser.parse_known_args(arguments)
    client = DagsterGrpcClient(host=options.host, port=options.port)
    threading.Thread(target=_watch, args=(client,), name="watch", daemon=True).start()
    served = ["--module-name", options.module, "--host", options.host, "--port", str(options.port)]
    dagster = create_dagster_cli()  # type: ignore[no-untyped-call]
    dagster(["code-server", "start", *served, *others])


def _watch(client: DagsterGrpcClient) -> None:
    while True:
        time.sleep(LOOK_S)
        try:
            if not loaded(client):
                client.reload_code(timeout=RELOAD_S)
        except DagsterUserCodeUnreachableError:
            continue  # it is starting, or loading


def loaded(client: DagsterGrpcClient) -> bool:
    """Whether the code server has definitions, rather than the error of a load that failed.

    Raises:
        DagsterUserCodeUnreachableError: it does not answer.
    """
    try:
        sync_list_repositories_grpc(client)
    except DagsterUserCodeProcessError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
