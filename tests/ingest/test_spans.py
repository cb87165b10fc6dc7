"""A request's trace leads from its sender to the batch that landed its events; off, it costs nothing."""

import socket
import threading
from collections.abc import Iterator

import pytest
from support.faults import AtPoint
from support.headers import send_named
from support.http import Api, Caller, sample, served
from support.ingest import Owner, event, ingest, make_owner, plan_batch, run_batch
from support.traces import Collector

from chaos.waiting import PATIENCE_S
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.ingest import messages, origins
from pulse_pipelines.ingest.origins import Origins
from pulse_pipelines.ingest.stages import PartitionCount
from pulse_pipelines.registry import keys
from pulse_resources import kafka, tracing

pytestmark = pytest.mark.usefixtures("stack")

TRACE, SENDER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STAGES = ("drain_and_conform", "dedup_gate", "land", "settle", "route_dead_letters")


@pytest.fixture
def traced(collector: Collector) -> Iterator[Api]:
    """The API with traces on."""
    with served() as api:
        yield api


def send_traced(owner: Owner, *event_ids: str) -> None:
    """Publish events into partition 0, each from a trace of its own: 1, 2, ..."""
    producer = kafka.shared_producer()
    for number, event_id in enumerate(event_ids, 1):
        headers = [("traceparent", f"00-{number:032x}-{SENDER}-01".encode())]
        producer.produce(owner.tenant.topic, event(event_id), partition=0, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


def sender(api: Api) -> Caller:
    owner = make_owner()
    key = keys.issue_key(owner.tenant, "test", tuple(KeyScope))
    return Caller(owner, key, api.client(key.text))


def test_a_trace_goes_from_the_sender_to_the_batch_that_settled_its_events(
    traced: Api, collector: Collector
) -> None:
    caller = sender(traced)
    sampled = {"traceparent": f"00-{TRACE}-{SENDER}-01", "tracestate": "vendor=1"}
    unsampled = {"traceparent": f"00-{TRACE[::-1]}-{SENDER}-00"}
    with caller.http as http:
        assert http.post("/v1/collect", json=[sample("a"), sample("b")], headers=sampled).status_code == 202
        assert http.post("/v1/collect", json=[sample("c")], headers=unsampled).status_code == 202
        assert http.post("/v1/collect", json=[sample("d", country=5)]).status_code == 422
        assert http.post("/v1/collect", json=[sample("e")]).status_code == 202
    batch = ingest(caller.owner)
    assert {row["id"] for row in caller.owner.rows()} == {"a", "b", "c", "e"}

    of_tenant = {"pulse_tenant": caller.owner.tenant.slug}
    request, refused, own = collector.named("POST /v1/collect", **of_tenant)
    assert (request.trace_id, request.parent_id, request.service) == (TRACE, SENDER, "pulse-api")
    assert request.attributes["http.response.status_code"] == 202
    assert (own.parent_id, own.attributes["http.response.status_code"]) == ("", 202)
    assert (refused.parent_id, refused.attributes["http.response.status_code"]) == ("", 422)
    (attempt,) = collector.named("ingest batch", pulse_batch_id=batch)
    assert (attempt.service, attempt.attributes["messaging.batch.message_count"]) == ("pulse-ingest", 4)
    for name in STAGES:
        (stage,) = collector.named(name, pulse_batch_id=batch)
        assert (stage.trace_id, stage.parent_id) == (attempt.trace_id, attempt.span_id)
        assert set(stage.links) == {(TRACE, request.span_id), (own.trace_id, own.span_id)}, name
    settled = collector.named("settle events", pulse_batch_id=batch)
    assert {(span.trace_id, span.parent_id) for span in settled} == {
        (TRACE, request.span_id),
        (own.trace_id, own.span_id),
    }
    assert {span.links for span in settled} == {((attempt.trace_id, attempt.span_id),)}
    assert not any(span.trace_id == TRACE[::-1] for span in collector.spans), "its sender did not sample it"


def test_the_span_of_a_failed_stage_names_failed_tenants_and_none_settles(
    owner: Owner, collector: Collector, at: AtPoint
) -> None:
    send_traced(owner, "a")
    batch = plan_batch([owner])

    def fail() -> None:
        raise OSError("the registry is away")

    at("gate.before_lookup", fail)
    run_batch(batch, raise_on_error=False)
    (drained,) = collector.named("drain_and_conform", pulse_batch_id=batch)
    (gated,) = collector.named("dedup_gate", pulse_batch_id=batch)
    assert (drained.failed, gated.failed, gated.attributes["pulse.failed_tenants"]) == (False, True, 1)
    assert len(drained.links) == len(gated.links) == 1
    assert not collector.named("settle events", pulse_batch_id=batch)


JUNK = (
    b"junk",
    b"",
    None,
    b"00-" + b"0" * 32 + b"-" + SENDER.encode() + b"-01",
    b"00-" + TRACE.encode() + b"-" + b"0" * 16 + b"-01",
    f"00-{TRACE}-{SENDER}-00".encode(),
    f"ff-{TRACE}-{SENDER}-01".encode(),
    f"00-{TRACE}-{SENDER}-01-more".encode(),
    f"00-{TRACE.upper()}-{SENDER}-01".encode(),
    b"\xff" * 55,
)


def test_junk_in_headers_is_ignored_and_span_links_are_bounded(owner: Owner, collector: Collector) -> None:
    producer = kafka.shared_producer()
    for number, value in enumerate(JUNK):
        headers = [("traceparent", value), ("other", b"\xff")]
        producer.produce(owner.tenant.topic, event(f"j{number}"), partition=0, headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    send_named(owner, (event("named"), b"\xff"))
    send_traced(owner, *(f"e{number}" for number in range(origins.MOST + 10)))
    batch = ingest(owner)
    assert len(owner.rows()) == len(JUNK) + 1 + origins.MOST + 10
    (stage,) = collector.named("settle", pulse_batch_id=batch)
    sent = {(f"{number:032x}", SENDER) for number in range(1, origins.MOST + 11)}
    assert len(set(stage.links)) == len(stage.links) == origins.MOST
    assert set(stage.links) < sent


def test_messages_beyond_the_ranges_are_not_origins(owner: Owner) -> None:
    send_traced(owner, "a", "b", "c")
    collector, of = Origins(owner.tenant.tenant_id), [OffsetRange(owner.tenant.tenant_id, 0, 0, 2)]
    (read,) = messages.read(Scope(owner.tenant, ()), of, {0: PartitionCount()}, 10, collector)
    assert len(read) == 2
    assert [origin.traceparent[3:35] for origin in collector.collected()] == [
        f"{n + 1:032x}" for n in range(2)
    ]


@pytest.mark.slow
def test_an_api_that_ends_exports_its_last_spans(collector: Collector) -> None:
    with served() as api, sender(api).http as http:
        assert http.post("/v1/collect", json=sample("a")).status_code == 202
    assert [span.name for span in collector.spans] == ["POST /v1/collect"]


def test_off_messages_carry_nothing(caller: Caller) -> None:
    assert not tracing.on()
    tenant = caller.owner.tenant
    answer = caller.http.post(
        "/v1/collect", json=sample("a"), headers={"traceparent": f"00-{TRACE}-{SENDER}-01"}
    )
    assert answer.status_code == 202
    ends = kafka.offsets([(tenant.topic, p) for p in range(kafka.partition_counts()[tenant.topic])], "latest")
    of = [OffsetRange(tenant.tenant_id, partition, 0, end) for (_, partition), end in ends.items() if end]
    collector, counts = Origins(tenant.tenant_id), {r.partition: PartitionCount() for r in of}
    (read,) = messages.read(Scope(tenant, ()), of, counts, 10, collector)
    assert (len(read), collector.collected()) == (1, ())


def test_a_collector_that_never_answers_holds_nothing_up(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        tracing.provider.cache_clear()
        owner.send(event("a"))
        ingest(owner)
        assert "traces" in {thread.name for thread in threading.enumerate()}, "the run waited for it"
    assert [row["id"] for row in owner.rows()] == ["a"]
