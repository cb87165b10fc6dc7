"""Databases that have whoever logs in compute for hours: neither threads nor signals end that."""

import base64
import multiprocessing
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.waiting import PATIENCE_S
from pulse_pipelines.pipes import turns
from pulse_pipelines.pipes.postgres import sessions
from pulse_resources.process.child_process import iterate_in_child
from pulse_resources.settings import load_settings, override_settings
from pulse_resources.settings.pipe_settings import PipeSettings

MOST_HASHES = 2**31 - 1
"""Iterations that a server may ask for: twenty minutes of a core."""


def message(content: bytes) -> bytes:
    return b"R" + struct.pack(">I", len(content) + 4) + content


@contextmanager
def demanding() -> Iterator[str]:
    """The address of a database that admits whoever has hashed its password so often."""

    def admit(link: socket.socket) -> None:
        with link:
            link.recv(2**16)
            link.sendall(message(struct.pack(">I", 10) + b"SCRAM-SHA-256\0\0"))
            nonce = link.recv(2**16).rpartition(b"r=")[2]
            salt = base64.b64encode(b"s" * 16)
            link.sendall(message(struct.pack(">I", 11) + b"r=%sx,s=%s,i=%d" % (nonce, salt, MOST_HASHES)))
            link.recv(1)

    def serve() -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return  # the test has ended
            threading.Thread(target=admit, args=[link], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield (
            f"host=127.0.0.1 port={server.getsockname()[1]} user=any password=any dbname=any "
            "sslmode=disable gssencmode=disable"
        )
        server.shutdown(socket.SHUT_RDWR)


def log_in(address: str) -> Iterator[str]:
    yield "begun"
    with sessions.within(0.1), sessions.connect(address):
        yield "admitted"


def log_in_within_a_turn(address: str) -> None:
    turns.END_S = 0.1
    settings = PipeSettings(watch_seconds=0.05, silent_seconds=0.1)
    with override_settings(load_settings().model_copy(update={"pipes": settings})):
        turn = turns.Turn(turns.no_one_waits, lambda: 0, None)
        with turn.watched(), turn.waiting(), sessions.connect(address):
            pass


def test_work_in_a_child_process_ends_in_time_whatever_it_computes() -> None:
    with demanding() as address:
        assert list(iterate_in_child(log_in, address, seconds=3)) == ["begun"]


def test_a_run_that_no_signal_ends_is_killed_after_its_turn() -> None:
    with demanding() as address:
        run = multiprocessing.get_context("forkserver").Process(
            target=log_in_within_a_turn, args=[address], daemon=True
        )
        run.start()
        run.join(PATIENCE_S)
        assert run.exitcode == -signal.SIGKILL
