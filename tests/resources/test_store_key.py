"""A key of the object store may be that of the machine's or the container's role, and is renewed."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from support.here import ingest_here as ingest
from support.ingest import Owner, event

from chaos.surroundings import with_settings
from pulse_pipelines.monitoring import doctor
from pulse_resources import object_store, spark_catalog
from pulse_resources.errors import UserError
from pulse_resources.settings import Settings, load_settings
from pulse_resources.store_keys import store_key

VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment without a key, and no client that had one."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    forget()
    yield monkeypatch
    forget()


def forget() -> None:
    store_key.forget()
    object_store.file_system.cache_clear()


@contextmanager
def role(access_key: str, secret_key: str, seconds: float) -> Iterator[tuple[str, list[str]]]:
    """What a container asks for its role's key; its address, and who has asked."""
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            until = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
            key = {"AccessKeyId": access_key, "SecretAccessKey": secret_key, "Expiration": until, "Token": ""}
            body = json.dumps(key).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the library's name
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/role", paths
        server.shutdown()


def examined() -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in doctor.examine("object store")}


@pytest.mark.parametrize("source", ["container", pytest.param("variables", marks=pytest.mark.slow)])
def test_every_client_opens_the_store_by_the_key_of_the_environment(
    stack: Settings, owner: Owner, nothing_known: pytest.MonkeyPatch, source: str
) -> None:
    owner.send(event("a"))
    ingest(owner)
    access_key, secret_key = stack.object_store.access_key, stack.object_store.secret_key.get_secret_value()
    with role(access_key, secret_key, 3600) as (address, paths), with_settings(OBJECT_STORE__SECRET_KEY=""):
        if source == "variables":
            nothing_known.setenv("AWS_ACCESS_KEY_ID", access_key)
            nothing_known.setenv("AWS_SECRET_ACCESS_KEY", secret_key)
        else:
            nothing_known.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
        forget()
        findings = examined()
        assert [finding for finding in findings.values() if not finding.ok] == []
        assert findings["key"].found == f"{access_key}, of the environment"
        assert [row["id"] for row in owner.rows()] == ["a"], "by DuckDB"
        catalog = spark_catalog.catalog(load_settings())
        assert [name for name in catalog if "access-key" in name or "token" in name] == []
    assert bool(paths) == (source == "container")


def test_a_key_of_a_role_is_renewed(stack: Settings, nothing_known: pytest.MonkeyPatch) -> None:
    with role("first", "secret", 1) as (address, paths), with_settings(OBJECT_STORE__SECRET_KEY=""):
        nothing_known.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
        for _ in range(3):
            key = store_key.of(load_settings().object_store)
            assert key.access_key == "first"
            assert "secret" not in repr(key)
    assert len(paths) >= 3


def test_a_missing_key_is_reported_at_once(stack: Settings, nothing_known: pytest.MonkeyPatch) -> None:
    with with_settings(OBJECT_STORE__SECRET_KEY=""):
        with pytest.raises(UserError, match="the environment has none"):
            store_key.of(load_settings().object_store)
        finding = examined()["key"]
    assert not finding.ok
    assert "PULSE_OBJECT_STORE__SECRET_KEY" in str(finding.fix)
