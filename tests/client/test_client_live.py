"""pulse_client against the real API, and the examples of docs/sending.md as they stand."""

import asyncio
import uuid

import pytest
from support.docs import blocks
from support.here import ingest_here as ingest
from support.http import Api, Caller, sample

from chaos.waiting import PATIENCE_S
from pulse_client import AsyncClient, Client, EventBuffer, OverRate, Unauthorized, new_event_id
from pulse_pipelines.registry import quotas
from pulse_resources.settings import load_settings


def test_events_of_all_three_land_once(api: Api, caller: Caller) -> None:
    events = [sample(f"e-{n}", amount=float(n)) for n in range(5)]
    with Client(api.url, caller.key.text) as client:
        result = client.send([*events, sample("bad") | {"data": {"country": 7}}])
    assert (result.accepted, result.refused) == (5, 1)
    assert (result.verdicts[0].index, result.verdicts[0].event_id) == (5, "bad")
    assert (result.verdicts[0].reason, result.verdicts[0].pointer) == ("schema_violation", "/data/country")

    async def send() -> int:
        async with AsyncClient(api.url, caller.key.text) as client:
            return (await client.send(events)).accepted

    assert asyncio.run(send()) == 5, "sent again"
    cloud = {"specversion": "1.0", "source": "/shop", "type": "orders", "data": {"country": "FR"}}
    with EventBuffer(api.url, caller.key.text) as buffer:
        buffer.send(sample("buffered"))
        buffer.send(cloud | {"id": "1"})
        buffer.send(cloud | {"id": "2", "source": ""})
        assert buffer.flush(PATIENCE_S)
    assert (buffer.stats.accepted, buffer.stats.refused) == (2, 1)
    ingest(caller.owner)
    assert {row["id"] for row in caller.owner.rows()} == {
        *(event["event_id"] for event in events),
        "buffered",
        "/shop#1",
    }


def test_a_wrong_key_is_an_error_with_its_fix(api: Api) -> None:
    unknown = f"pulse_{uuid.uuid4().hex}_000000000000_{'x' * 43}"
    with Client(api.url, unknown) as client, pytest.raises(Unauthorized) as caught:
        client.send(sample())
    assert caught.value.status == 401
    assert caught.value.fix
    assert caught.value.request_id


def test_over_rate_is_waited_out_while_the_time_lasts(api: Api, caller: Caller) -> None:
    quotas.set_limits(caller.owner.tenant, events_per_second=0.001)
    with Client(api.url, caller.key.text, max_events=1) as client, pytest.raises(OverRate) as caught:
        # An API process learns of the limit within a second or two; until then it accepts.
        client.send((sample(new_event_id()) for _ in range(10**6)), timeout=PATIENCE_S)
    assert caught.value.partial
    assert caught.value.partial.refused == 0


def test_the_examples_of_the_page_work(
    api: Api, caller: Caller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = load_settings().kafka
    variables = {
        "PULSE": api.url,
        "KEY": caller.key.text,
        "KAFKA_BROKERS": kafka.bootstrap_servers,
        "KAFKA_USER": kafka.username,
        "KAFKA_PASSWORD": kafka.password.get_secret_value(),
        "KAFKA_TOPIC": caller.owner.tenant.topic,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    # The brokers of the tests have neither TLS nor users of tenants.
    replacements = {"SASL_SSL": kafka.security_protocol, "SCRAM-SHA-512": kafka.sasl_mechanism}
    for example in blocks("sending.md", "python"):
        for text, replacement in replacements.items():
            example = example.replace(f'"{text}"', f'"{replacement}"')
        exec(example, {})  # noqa: S102 - the page is ours
    assert "1 o-x refused schema_violation /data/country" in capsys.readouterr().out
    ingest(caller.owner)
    ids = {row["id"] for row in caller.owner.rows()}
    assert {"o-1", "o-3", "k-1"} < ids, "and the one without an id"
