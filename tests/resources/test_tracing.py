"""Traces are on by the standard variables alone, and whatever is wrong with them is said in a line."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pulse_resources import tracing
from pulse_resources.local import ports


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    tracing.provider.cache_clear()
    yield
    tracing.provider.cache_clear()


OFF = """
import sys
from pulse_api.http.app import create_app
import pulse_pipelines.definitions
create_app()
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""


@pytest.mark.long
def test_off_nothing_of_the_sdk_is_imported() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", OFF], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "True"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_the_standard_variables_turn_traces_off(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracing.tracer("test") is None
    tracing.flush(tracing.provider("test"))


def test_a_wrong_setting_turns_traces_off_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "many")
    assert tracing.tracer("test") is None
    (record,) = caplog.records
    assert "traces are off" in record.getMessage()


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:{port}/v1/traces?token=SECRET", "no-url?token=SECRET", "http://["]
)
def test_a_collector_that_is_away_is_one_line_of_log(
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.format(port=ports.choose_any(())))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    tracer = tracing.tracer("test")
    for _ in range(3):
        tracer.start_span("lost").end()
        tracing.provider("test", always=True).force_flush()
    (record,) = [entry for entry in caplog.records if entry.name.startswith(("pulse", "opentelemetry"))]
    assert (record.name, record.levelno, record.exc_info) == ("pulse.tracing", logging.WARNING, None)
    assert "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in record.getMessage()
    assert "SECRET" not in record.getMessage()
    assert "Traceback" not in "".join(capfd.readouterr())
    tracing.provider("test", always=True).shutdown()
