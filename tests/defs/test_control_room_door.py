"""The control room is closed: Dagster's real web server, attacked from other sites and by strangers."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from playwright.sync_api import Page, expect
from starlette.datastructures import Headers
from support.browser import Picture
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from chaos.surroundings import TLS
from chaos.waiting import PATIENCE_S
from pulse_pipelines.defs.control_room.identity import Identity, Role
from pulse_pipelines.defs.control_room.server import changes
from pulse_pipelines.defs.ingest.job import ingest
from pulse_pipelines.defs.resources import services
from pulse_resources.local import dagster as local_dagster, ports
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import DagsterSettings

TOKEN, LOOKING = "operator-token-of-this-test", "read-only-token-of-this-test"
DEFINITIONS = """
import dagster

from pulse_pipelines.defs.curated.job import curate
from pulse_pipelines.defs.resources import services

@dagster.asset
def harbour():
    return 1

@dagster.sensor(target=[harbour], default_status=dagster.DefaultSensorStatus.RUNNING)
def tide():
    return dagster.SkipReason("low")

@dagster.definitions
def defs():
    return dagster.Definitions(
        assets=[harbour],
        jobs=[curate],
        sensors=[tide],
        resources=services(),
        executor=dagster.in_process_executor,
    )
"""
INSTANCE = """
telemetry:
  enabled: false
nux:
  enabled: false
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
"""
STOP = 'mutation { stopSensor(id: "x") { __typename } }'
HARMLESS = "{ version }"
LAUNCH = """
mutation {
  launchRun(executionParams: {
    selector: {
      jobName: "curate", repositoryName: "__repository__", repositoryLocationName: "definitions.py"
    },
    runConfigData: {ops: {compute_what_is_due: {config: {since: %s}}}}
  }) {
    __typename
    ... on RunConfigValidationInvalid { errors { message } }
    ... on LaunchRunSuccess { run { runId } }
  }
}
"""


@dataclass(frozen=True)
class Room:
    """A web server of its own, without the rest of the stack."""

    settings: Settings

    @property
    def url(self) -> str:
        return local_dagster.url(self.settings)

    def post(self, query: str, token: str | None = TOKEN, **headers: str) -> httpx.Response:
        """A GraphQL query as a program asks it."""
        known = {"Authorization": f"Bearer {token}"} if token else {}
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{self.url}/graphql",
            json={"query": query},
            headers=known | http_headers,
            timeout=PATIENCE_S,
            verify=TLS,
        )


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    folder = tmp_path_factory.mktemp("room")
    (folder / "definitions.py").write_text(DEFINITIONS)
    (folder / "dagster.yaml").write_text(INSTANCE)
    (folder / "workspace.yaml").write_text("load_from:\n  - python_file: definitions.py\n")
    port = ports.choose_any(())
    dagster_settings = DagsterSettings(webserver_port=port, token=TOKEN, read_only_token=LOOKING)
    environment = {
        "PULSE_DAGSTER__WEBSERVER_PORT": str(port),
        "PULSE_DAGSTER__TOKEN": TOKEN,
        "PULSE_DAGSTER__READ_ONLY_TOKEN": LOOKING,
        "PULSE_DAGSTER__PROXY_HEADER": "X-Forwarded-User",
        "PULSE_DAGSTER__PROXY_ADDRESSES": '["192.0.2.0/24"]',
        "DAGSTER_HOME": str(folder),
        "PULSE_HOME": str(folder),
    }
    room = Room(Settings(dagster=dagster_settings))
    with serving(folder, environment, room.url):
        yield room


@contextmanager
def serving(folder: Path, environment: dict[str, str], url: str) -> Iterator[None]:
    words = ["pulse_pipelines.defs.control_room.server", "-w", str(folder / "workspace.yaml")]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", *words], env=os.environ | environment, stdout=log, stderr=log, cwd=folder
        ) as server,
    ):
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not answers(f"{url}/healthz"):
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield
        finally:
            server.terminate()
            assert server.wait(PATIENCE_S) is not None


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE_S, verify=TLS).status_code == 200
    except httpx.TransportError:
        return False


# who asks, and from where ------------------------------------------------------------------------


def test_a_stranger_sees_nothing(room: Room) -> None:
    for path in ("/", "/server_info", "/graphql", "/logs/a/b.out", "/download_debug/x", "/favicon.png"):
        answer = httpx.get(room.url + path, timeout=PATIENCE_S, verify=TLS)
        assert answer.status_code == 401, path
        assert "Authorization" in answer.json()["fix"]
    assert room.post(HARMLESS, None).status_code == 401
    assert room.post(HARMLESS, "operator-token-of-this-tesu").status_code == 401
    assert room.post(HARMLESS, None, X_Forwarded_User="ann").status_code == 401, "not from that address"
    assert room.post(HARMLESS, None, X_Forwarded_User="ann", X_Forwarded_For="192.0.2.7").status_code == 401
    assert room.post(HARMLESS).json()["data"]["version"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Host": "evil.example"}),  # its name leads here by DNS rebinding
        (421, {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"}),
        (421, {"Host": "localhost.evil.example"}),
        (403, {"Origin": "https://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "http://127.0.0.1:8000"}),
        (403, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        (403, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}),
        (403, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
        (415, {"Content-Type": "text/plain"}),
        (415, {"Content-Type": "text/plain; application/json"}),
        (415, {"Content-Type": "application/x-www-form-urlencoded"}),
        (415, {"Content-Type": "application/graphql"}),
        (415, {"Content-Type": "application/json; charset=iso-8859-1"}),
    ],
)
def test_a_foreign_page_s_request_is_refused(room: Room, status: int, headers: dict[str, str]) -> None:
    """Though it carries what the browser knows: the session of a person who has the UI open."""
    session = Identity(room.settings.dagster)
    known = {
        "Cookie": f"{session.cookie}={session.session(Role.OPERATOR)}",
        "Content-Type": "application/json",
    }
    body = json.dumps({"query": HARMLESS})
    own = httpx.post(
        f"{room.url}/graphql",
        content=body,
        headers=known | {"Origin": room.url},
        timeout=PATIENCE_S,
        verify=TLS,
    )
    assert own.status_code == 200
    foreign = httpx.post(
        f"{room.url}/graphql", content=body, headers=known | headers, timeout=PATIENCE_S, verify=TLS
    )
    assert (foreign.status_code, "version" in foreign.text) == (status, False)


def test_an_image_stops_no_sensor(room: Room) -> None:
    """GraphQL by GET, mutations or not, is answered to nobody."""
    for query in (STOP, HARMLESS):
        answer = httpx.get(
            f"{room.url}/graphql",
            params={"query": query},
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=PATIENCE_S,
            verify=TLS,
        )
        assert answer.status_code == 405


@pytest.mark.parametrize(
    "body",
    [
        b'[{"query": "{ version }"}]',
        b'"{ version }"',
        b"1",
        b"null",
        b"",
        b"{",
        b'{"query": "\xff"}',
        b"\xff{",
        b"1" * 5_000,
        b"[" * 100_000,
        b'{"query": null}',
        b'{"query": 1}',
        b'{"query": ["{ version }"]}',
        b'{"query": "{ \\ud800 }"}',
        b'{"query": "{ version }", "variables": []}',
        b'{"query": "{ version }", "variables": 1}',
        b'{"query": "{ version }", "variables": "[]"}',
        b'{"query": "{ version }", "variables": "{"}',
        b'{"query": "{ version }", "operationName": 1}',
    ],
)
def test_a_body_of_another_shape_is_refused(room: Room, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    refused = httpx.post(f"{room.url}/graphql", content=body, headers=headers, timeout=PATIENCE_S, verify=TLS)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]
    assert refused.json()["fix"]


@pytest.mark.parametrize("variables", [None, {}, "{}"])
def test_a_query_needs_no_variables(room: Room, variables: object) -> None:
    body = {"query": HARMLESS, "variables": variables, "operationName": None}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.post(f"{room.url}/graphql", json=body, headers=headers, timeout=PATIENCE_S, verify=TLS)
    assert answer.json()["data"]["version"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(room: Room, method: str) -> None:
    answer = httpx.request(
        method,
        f"{room.url}/graphql",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=PATIENCE_S,
        verify=TLS,
    )
    assert answer.status_code == 405


def test_web_sockets_go_through_the_same_door(room: Room) -> None:
    def opened(**headers: str) -> bool:
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        address = room.url.replace("http", "ws", 1) + "/graphql"
        try:
            with connect(address, additional_headers=http_headers, subprotocols=["graphql-ws"]) as socket:  # type: ignore[list-item]
                socket.send(json.dumps({"type": "connection_init"}))
                assert json.loads(socket.recv(PATIENCE_S)) == {"type": "connection_ack"}
                start = {"type": "start", "id": "1", "payload": {"query": STOP}}
                socket.send(json.dumps(start))
                assert json.loads(socket.recv(PATIENCE_S))["type"] == "error", "a socket is for subscriptions"
        except InvalidStatus as refused:
            return refused.response.status_code != 403
        return True

    known = {"Authorization": f"Bearer {TOKEN}"}
    assert opened(**known, Origin=room.url)
    assert not opened()
    assert not opened(**known, Origin="https://evil.example")
    assert not opened(**known, Sec_Fetch_Site="cross-site")


def test_a_read_only_token_cannot_change_anything(room: Room) -> None:
    assert room.post(HARMLESS, LOOKING).status_code == 200
    for query in (STOP, f"query A {HARMLESS} {STOP.replace('mutation', 'mutation B')}"):
        refused = room.post(query, LOOKING)
        assert (refused.status_code, "read-only" in refused.json()["error"]) == (403, True)
    report = {"url": f"{room.url}/report_asset_materialization/harbour", "json": {}}
    assert (
        httpx.post(
            **report, headers={"Authorization": f"Bearer {LOOKING}"}, timeout=PATIENCE_S, verify=TLS
        ).status_code
        == 403
    )
    assert (
        httpx.post(
            **report, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S, verify=TLS
        ).status_code
        == 200
    )
    permissions = "{ permissions { permission value } }"
    granted = {
        p["permission"]: p["value"] for p in room.post(permissions, LOOKING).json()["data"]["permissions"]
    }
    assert granted
    assert not any(granted.values()), "the UI greys out what it offers by these"
    assert room.post(STOP).json()["data"]["stopSensor"]["__typename"] != "UnauthorizedError"


def test_mutations_are_recognized_as_changes() -> None:
    assert changes("query A { version } mutation { x }")
    assert changes("fragment F on Mutation { x } mutation($a: Int) { ...F }")
    assert not changes('{ runs(filter: "mutation") { id } }')
    assert not changes("mutation {")


def test_pages_have_a_strict_content_security_policy(room: Room) -> None:
    known = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    nonces = set()
    for path in ("/", "/login", "/logout", "/favicon.png", "/graphql"):
        answer = httpx.get(room.url + path, headers=known, timeout=PATIENCE_S, verify=TLS)
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "https:" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        nonces |= set(re.findall(r"'nonce-([^']+)'", policy))
    assert len(nonces) == 3, "of the UI, of signing in and out"


# sessions and proxies ----------------------------------------------------------------------------


def identity(**settings: Any) -> Identity:
    return Identity(DagsterSettings.model_validate({"token": TOKEN, "read_only_token": LOOKING} | settings))


def role(known: Identity, address: str = "127.0.0.1", **headers: str) -> Role | None:
    http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return known.of({"client": (address, 4711)}, Headers(http_headers))


def test_a_session_is_signed_and_expires_with_its_time_or_token() -> None:
    known = identity()
    session = known.session(Role.READ_ONLY)

    def of(value: str, by: Identity = known) -> Role | None:
        return role(by, Cookie=f"{by.cookie}={value}")

    assert of(session) is Role.READ_ONLY
    assert of(known.session(Role.OPERATOR)) is Role.OPERATOR
    name, ends, signature = session.split(".")
    for forged in (
        f"operator.{ends}.{signature}",
        f"{name}.{int(ends) + 1}.{signature}",
        f"{name}.{ends}.",
        f"{name}.{ends}",
        "operator",
        "",
        "é.1.2",
    ):
        assert of(forged) is None, forged
    assert of(session, identity(read_only_token="another-token-of-the-test")) is None
    assert of(identity(session_hours=1e-9).session(Role.OPERATOR)) is None


def test_the_header_of_a_proxy_is_accepted_only_from_trusted_addresses() -> None:
    trusted = {
        "proxy_header": "X-User",
        "proxy_addresses": ["192.0.2.0/24", "::1"],
        "proxy_operators": ["ann"],
    }
    known = identity(**trusted)
    assert role(known, "192.0.2.9", X_User="ann") is Role.OPERATOR
    assert role(known, "::1", X_User="bob") is Role.READ_ONLY
    assert role(known, "192.0.3.9", X_User="ann") is None
    assert role(known, "192.0.2.9", X_User="") is None
    twice = Headers(raw=[(b"x-user", b"bob"), (b"x-user", b"ann")])
    assert known.of({"client": ("192.0.2.9", 1)}, twice) is None
    assert role(identity(**trusted | {"proxy_operators": ["*"]}), "::1", X_User="bob") is Role.OPERATOR
    assert Identity(DagsterSettings.model_validate(trusted)).is_configured()
    assert not Identity(DagsterSettings()).is_configured()
    assert not Identity(DagsterSettings(proxy_header="X-User")).is_configured()


@pytest.mark.long
def test_the_control_room_does_not_start_without_a_token(tmp_path: Path) -> None:
    workspace = "dagster_home/workspace.yaml"
    server = [sys.executable, "-m", "pulse_pipelines.defs.control_room.server", "-w", workspace]
    done = subprocess.run(
        server, env=os.environ | {"PULSE_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Set PULSE_DAGSTER__TOKEN" in done.stdout + done.stderr


# as a person -------------------------------------------------------------------------------------


def test_a_person_signs_in_and_works(room: Room, page: Page) -> None:
    """By the address that `pulse up` prints; the UI's policy stops nothing of the UI's own."""
    stopped: list[str] = []
    page.on(
        "console",
        lambda message: stopped.append(message.text) if "Content Security" in message.text else None,
    )
    page.goto(f"{room.url}/overview/activity")
    page.get_by_label("Token").fill("not the token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not a token")
    page.goto(str(local_dagster.login_url(room.settings)))
    page.wait_for_url(lambda url: "login" not in url)
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.goto(f"{room.url}/assets/harbour")
    with page.expect_response(lambda answer: "mutation Launch" in (answer.request.post_data or "")):
        page.get_by_role("button", name="Materialize").first.click()
    page.goto(f"{room.url}/runs")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    page.goto(f"{room.url}/asset-groups")
    expect(page.get_by_text("harbour", exact=True).first).to_be_visible()
    assert stopped == []
    page.evaluate("document.body.append(Object.assign(new Image(), {src: 'https://evil.example/i'}))")
    page.wait_for_timeout(500)
    assert stopped, "what comes from elsewhere is stopped, and would have been seen"
    page.goto("data:text/html,<p>another site</p>")
    page.evaluate(f"location.href = '{room.url}/runs'")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    page.context.clear_cookies()
    page.goto("data:text/html,<p>another site</p>")
    page.evaluate(f"location.href = '{local_dagster.login_url(room.settings)}'")
    page.wait_for_url(lambda url: "login" not in url and url.startswith(room.url))


def test_a_person_signs_out(room: Room, page: Page, picture: Picture) -> None:
    """By a link that each page has; a page of another site signs nobody out."""
    page.goto(str(local_dagster.login_url(room.settings)))
    page.wait_for_url(lambda url: "login" not in url)
    (cookie,) = page.context.cookies()
    for address in ("/logout", "/login"):
        foreign = {"Origin": "https://evil.example", "Cookie": f"{cookie['name']}={cookie['value']}"}
        refused = httpx.post(room.url + address, json={}, headers=foreign, timeout=PATIENCE_S, verify=TLS)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    page.goto(f"{room.url}/runs")
    expect(page.get_by_role("button", name="Older")).to_be_visible()
    picture("control-room-sign-out-link")
    page.get_by_role("link", name="Sign out").click()
    picture("control-room-sign-out")
    assert page.context.cookies() == [cookie], "the link only asks"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []
    page.goto(f"{room.url}/runs")
    expect(page.get_by_label("Token")).to_be_visible()


# run config --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [{"spark_config": {"spark.remote": "sc://evil.example"}}, {"address": "evil"}]
)
def test_run_config_carries_no_spark_settings(config: dict[str, Any]) -> None:
    attempt = {"config": {"batch_id": "b", "attempt": 1}}
    bound = dg.Definitions(
        jobs=[ingest],
        resources=services() | {"attempt": dg.ResourceDefinition.none_resource()},
    ).get_job_def("ingest")
    with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected config entry"):
        dg.validate_run_config(bound, {"resources": {"pyspark": {"config": config}}})
    assert "pyspark" in dg.validate_run_config(bound, {"resources": {"attempt": attempt}})["resources"]


def test_run_config_reads_no_environment_variable(room: Room) -> None:
    """The value would stand in the run's error: `Invalid isoformat string: '<a password>'`."""
    answer = room.post(LAUNCH % '{env: "PULSE_DAGSTER__TOKEN"}').json()["data"]["launchRun"]
    assert answer["__typename"] == "RunConfigValidationInvalid"
    assert "since" in answer["errors"][0]["message"]
