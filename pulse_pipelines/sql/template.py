"""Template process with everything loaded, which is forked for each query.

It has no secrets and sees no query. Loading DuckDB's extensions takes a third of a second, a fork takes a
few milliseconds. It runs as `python -m pulse_pipelines.sql.template <confinement as JSON>`, and is called on
its standard input, a Unix socket: each message carries a socket for a child; the answer is the child's pidfd.
"""

import array
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import duckdb
import pyarrow as pa

from pulse_pipelines.sql import child, engine
from pulse_pipelines.sql.confinement import Confinement
from pulse_pipelines.sql.gate import Gate
from pulse_resources.process.niceness import begin_session

_Serve = Callable[[Connection, Confinement, Gate, duckdb.DuckDBPyConnection], None]


def main(serve: _Serve = child.serve) -> None:
    """Fork this process on request, until the parent closes the socket."""
    begin_session()  # the server has priority over batches; queries must not
    confinement = Confinement.from_json(sys.argv[1])
    gate, database = Gate(), engine.instance()
    _warm_up(gate, database)
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    while True:
        _, received, _, _ = socket.recv_fds(control, 1, 1)
        if not received:
            return
        child_id = os.fork()
        if child_id == 0:
            control.close()
            _be_child(received[0], lambda channel: serve(channel, confinement, gate, database))
        os.close(received[0])
        handle = os.pidfd_open(child_id)
        socket.send_fds(control, [b"."], array.array("i", [handle]).tolist())
        os.close(handle)


def _be_child(descriptor: int, serve: Callable[[Connection], None]) -> None:
    """Run the child's side of a fork. Never returns."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        serve(Connection(descriptor))
    finally:
        os._exit(0)


def _warm_up(gate: Gate, database: duckdb.DuckDBPyConnection) -> None:
    """Trigger Python's lazy imports now, as a child can open no file."""
    gate.check("SELECT 1")
    database.from_arrow(pa.table({"a": pa.array([0])}))  # not read: that would start threads of Arrow's
    pa.table({"a": pa.array([0], pa.timestamp("us", "UTC"))}).to_pylist()
    socket.getaddrinfo("localhost", None)


if __name__ == "__main__":
    main()
