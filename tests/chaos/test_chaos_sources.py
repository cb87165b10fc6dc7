"""Servers that stand for tenants' sources."""

import socket

import pytest
from support.ingest import make_owner

from chaos import sources
from pulse_resources.settings import Settings


def test_a_server_tries_another_port_if_its_own_is_taken(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = iter([listener.getsockname()[1], sources.free_port()])
        monkeypatch.setattr(sources, "free_port", lambda: next(ports))
        with sources.capturing(make_owner().tenant) as connection:
            assert connection.execute("SHOW wal_level").fetchall() == [("logical",)]
