"""The template: a process with everything loaded, of which each query gets a copy (`fork`) of its own.

It knows no secret and sees no query. Loading DuckDB's extensions takes a third of a second, a copy takes a
few milliseconds. It runs as `python -m pulse_pipelines.sql.template <confinement as JSON>`, and is asked on
its standard input, a Unix socket: each message brings a socket for a child; the answer is a handle of it.
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

_Serve = Callable[[Connection, Confinement, Gate, duckdb.DuckDBPyConnection], None]


def main(serve: _Serve = child.serve) -> None:
    """Copy this process whenever it is asked to, until whoever asks is gone."""
    confinement = Confinement.from_json(sys.argv[1])
    gate, database = Gate(), engine.instance()
    _warm_up(gate)
    control = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
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
    """Never returns."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        serve(Connection(descriptor))
    finally:
        os._exit(0)


def _warm_up(gate: Gate) -> None:
    """Have Python import now what it imports when it is first needed: a child can open no file."""
    gate.check("SELECT 1")
    pa.table({"a": pa.array([0], pa.timestamp("us", "UTC"))}).to_pylist()
    socket.getaddrinfo("localhost", None)


if __name__ == "__main__":
    main()
