"""pulse_api.sending: the client as `pulse collect` and the demo use it, with Pulse's own errors."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulse_api import sending
from pulse_client import Retries
from pulse_resources.errors import PulseError, Terminal, Transient, UserError

ACCEPTED = {"accepted": 1, "dead_lettered": 0, "refused": 0, "verdicts": []}
Answer = tuple[int, dict[str, str], Any]


@pytest.fixture
def serve() -> Iterator[Callable[[list[Answer]], tuple[str, list[str]]]]:
    """A server that answers (status, headers, body) in turn, and keeps port and encoding of requests."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(script: list[Answer]) -> tuple[str, list[str]]:
        requests: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, body = script[min(len(requests), len(script) - 1)]
                requests.append(f"{self.client_address[1]} {self.headers['Content-Encoding']}")
                if status == 0:
                    self.close_connection = True
                    return
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", requests

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[list[Answer]], tuple[str, list[str]]]


def collect(url: str, requests: int = 1) -> sending.SendResult:
    (batch,) = sending.batches([b"{}"])
    with sending.open_client(url, "key") as client:
        return [sending.send_batch(client, batch) for _ in range(requests)][-1]


def test_requests_share_a_connection_and_are_compressed(serve: Serve) -> None:
    url, requests = serve([(202, {}, ACCEPTED)])
    assert collect(url, 3).accepted == 1
    assert len(requests) == 3
    assert len(set(requests)) == 1
    assert requests[0].endswith(" gzip")


def test_a_broken_connection_is_tried_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "RETRIES", Retries(first_pause_s=0.001))
    url, requests = serve([(0, {}, None), (202, {}, ACCEPTED)])
    assert collect(url).accepted == 1
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, {}, {"type": "t", "detail": "no key"}), UserError),
        ((429, {}, {"type": "t", "detail": "the month is over"}), UserError),
        ((429, {"Retry-After": "86400"}, {"type": "t", "detail": "tomorrow"}), Transient),
        ((500, {}, {"type": "t", "detail": "oops"}), Transient),
        ((501, {}, b"<html>a proxy</html>"), Terminal),
        ((202, {}, b"[]"), Terminal),
        ((202, {}, ACCEPTED | {"accepted": 2}), Terminal),
    ],
)
def test_an_error_answer_becomes_an_error_class_of_pulse(
    answer: Answer, error: type[PulseError], serve: Serve
) -> None:
    url, requests = serve([answer])
    with pytest.raises(PulseError) as caught:
        collect(url)
    assert type(caught.value) is error
    assert caught.value.where["status"] == str(answer[0])
    assert len(requests) == 1
