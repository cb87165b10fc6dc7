"""The harness of rolling upgrades: it names each failed request, and starts the version that it says."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chaos.upgrade.clients import NOT_LISTENING, Front
from chaos.upgrade.versions import REPOSITORY, Versions, commit_of, without_path
from pulse_resources.local import ports

WHERE = "import pulse_resources; print(pulse_resources.__path__[0])"


class Answering(BaseHTTPRequestHandler):
    """Answers with the status in the path, and with Retry-After if the query asks for it."""

    def do_GET(self) -> None:
        status, _, retry = self.path.strip("/").partition("?")
        if status == "none":  # closes the connection instead
            return
        self.send_response(int(status))
        if retry:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Do not print requests."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_each_request_that_failed_is_named(url: str) -> None:
    front = Front([url])
    for path in ("200", "202", "503?retry", "503", "500", "404", "none"):
        front.request("events", "GET", f"/{path}")
    assert sorted(front.unexpected()) == [
        ("events", "404", 1),
        ("events", "500", 1),
        ("events", "503", 1),
        ("events", "RemoteProtocolError", 1),
    ]


def test_a_request_goes_to_a_process_that_listens(url: str) -> None:
    closed = f"http://127.0.0.1:{ports.choose_any(())}"
    front = Front([closed, url])
    answer = front.request("events", "GET", "/200")
    assert answer
    front.urls.remove(url)
    assert front.request("events", "GET", "/200") is None
    assert list(front.unexpected()) == [("events", NOT_LISTENING, 1)]


def test_services_take_the_current_version_and_others_that_of_their_parent(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    old = versions.install(commit_of("HEAD"))
    new = versions.install(commit_of("HEAD~1"))
    versions.make_current(new)
    assert Path(old.run("-c", WHERE).strip()).parent == old.venv.parent / "code"
    # A service is a child of the supervisor, whose command line has this name.
    command = [str(old.venv / "bin" / "python"), "-c", WHERE]
    child = f"import subprocess; subprocess.run({command})"
    supervisor = [sys.executable, "-c", child, "pulse_resources.local.supervisor"]
    output = subprocess.check_output(supervisor, env=without_path(os.environ), cwd=tmp_path, text=True)
    assert Path(output.strip()).parent == new.venv.parent / "code"
    assert versions.started(new, "-c")


@pytest.mark.slow
def test_an_upgrade_from_the_data_model_before_this_one() -> None:
    command = [sys.executable, "-m", "chaos", "upgrade", "--seconds", "5"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["passed"]), done.stdout + done.stderr
