"""Questions over a tenant's tables: over HTTP and the command line, with what they were understood as."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.here import ingest_here as ingest
from support.http import Caller, served
from support.ingest import Owner, event, make_owner
from typer.testing import CliRunner

from chaos.surroundings import superuser, with_settings
from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.ask import record
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys
from pulse_resources import postgres
from pulse_resources.settings import Settings

BY_COUNTRY = "How many orders are there by country?"


@pytest.fixture(scope="module")
def owners(stack: Settings) -> tuple[Owner, Owner]:
    mine, other = make_owner(), make_owner()
    mine.send(*(event(f"a-{n}", country="DE" if n % 4 else "FR", amount=n / 2, count=n) for n in range(20)))
    other.send(event("of-the-other", country="XX", amount=1.5))
    trips = {"country": {"type": "string"}, "passengers": {"type": "integer"}}
    schema = registry.publish_schema(
        mine.tenant, "trips", json.dumps({"type": "object", "properties": trips})
    )
    registry.create_dataset(mine.tenant, "trips", schema.schema_uri)
    for number, passengers in enumerate((2**63 - 1, 2**63 - 1, 1)):
        mine.send(event(f"t-{number}", dataset="trips", country="DE", passengers=passengers))
    mine.send(event("t-fr", dataset="trips", country="FR", passengers=1))
    ingest(mine, other)
    return mine, other


@pytest.fixture
def caller(owners: tuple[Owner, Owner], new_caller: Callable[..., Caller]) -> Caller:
    return new_caller(owner=owners[0])


def ask(caller: Caller, question: str) -> httpx.Response:
    return caller.http.post("/v1/ask", json={"question": question})


def answer_of(caller: Caller, question: str) -> dict[str, Any]:
    answer = ask(caller, question)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_an_answer_names_its_sql_provider_and_snapshots(caller: Caller) -> None:
    body = answer_of(caller, BY_COUNTRY)
    assert body["rows"] == [{"country": "DE", "number": 15}, {"country": "FR", "number": 5}]
    assert body["understood"] == "number of rows in orders; by country"
    assert (body["provider"], body["tries"]) == ("grammar", 1)
    assert body["sql"].startswith('SELECT "country" AS "country", count(*)')
    assert list(body["snapshots"]) == list(body["freshness"]) == ["orders"]
    assert body["freshness"]["orders"]
    (query,) = (q for q in caller.http.get("/v1/sql").json()["queries"] if q["query_id"] == body["query_id"])
    assert (query["sql"], query["key_id"], query["state"]) == (body["sql"], caller.key.stored.key_id, "done")


@pytest.mark.usefixtures("shared_processes")
def test_a_sum_keeps_its_digits(owners: tuple[Owner, Owner], caller: Caller) -> None:
    question = "Total passengers by country"
    answer = ask(caller, question)
    assert f'"country":"DE","sum_passengers":{2**64 - 1}' in answer.text, answer.text
    assert isinstance(answer.json()["snapshots"]["trips"], str), "beyond 2^53"
    done = CliRunner().invoke(cli.app, ["ask", owners[0].tenant.slug, question, "--json"])
    assert f'"sum_passengers": {2**64 - 1}' in done.output, done.output
    shown = CliRunner().invoke(cli.app, ["ask", owners[0].tenant.slug, question])
    assert "18,446,744,073,709,551,615" in shown.output
    query = f"SELECT {2**64} AS h, 0.12345678901234567890::DECIMAL(30, 20) AS d"
    shown = CliRunner().invoke(cli.app, ["sql", owners[0].tenant.slug, query])
    assert str(2**64) in shown.output
    assert "0.12345678901234567890" in shown.output


def test_the_grammar_reads_values_from_the_data(caller: Caller) -> None:
    body = answer_of(caller, "What is the average amount of orders in FR on 2026-11-19?")
    assert body["rows"] == [{"avg_amount": 4.0}]
    assert "'FR' is in country" in body["understood"]
    refused = ask(caller, "How many orders are there in XX?")  # only another tenant has it
    assert refused.status_code == 422


def test_a_question_with_an_unknown_word_is_refused(caller: Caller) -> None:
    refused = ask(caller, "How many orders by country were cancelled?")
    problem = refused.json()
    assert (refused.status_code, problem["type"]) == (422, "urn:pulse:problem:not-understood")
    assert "'cancelled' means nothing in orders" in problem["detail"]
    assert "country" in problem["known"]["orders"]
    (question, *_) = caller.http.get("/v1/ask").json()["questions"]
    assert (question["state"], question["question"]) == (
        "refused",
        "How many orders by country were cancelled?",
    )


def test_each_question_is_recorded_with_its_queries(caller: Caller) -> None:
    body = answer_of(caller, BY_COUNTRY)
    (question, *_) = caller.http.get("/v1/ask").json()["questions"]
    assert question["question_id"] == body["question_id"]
    assert (question["key_id"], question["queries"]) == (caller.key.stored.key_id, [body["query_id"]])
    assert (question["state"], question["tokens"], question["error"]) == ("answered", 0, None)


def test_tenants_see_nothing_of_each_other(
    owners: tuple[Owner, Owner], new_caller: Callable[..., Caller]
) -> None:
    theirs = new_caller(owner=owners[1])
    assert answer_of(theirs, BY_COUNTRY)["rows"] == [{"country": "XX", "number": 1}]
    mine = {question.question_id for question in record.questions(owners[0].tenant, 100)}
    assert not mine & {question.question_id for question in record.questions(owners[1].tenant, 100)}
    with superuser() as connection:
        assert connection.execute("SELECT count(*) FROM questions").fetchone() > (0,)
    with postgres.transaction("pulse_api") as connection:
        assert connection.execute("SELECT count(*) FROM questions").fetchone() == (0,)


def test_tenants_that_ask_at_once_get_their_own_answers(
    owners: tuple[Owner, Owner], new_caller: Callable[..., Caller]
) -> None:
    """The same question, whose words are looked up in the data, by both, again and again."""
    callers = [new_caller(owner=owner) for owner in owners]

    def ask_in_turn(turn: int) -> tuple[int, list[Any]]:
        caller = callers[turn % 2]
        return turn % 2, answer_of(caller, "How many orders are there by country on 2026-11-19?")["rows"]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask_in_turn, range(8)))
    mine, theirs = (
        [{"country": "DE", "number": 15}, {"country": "FR", "number": 5}],
        [{"country": "XX", "number": 1}],
    )
    assert answers == [(0, mine), (1, theirs)] * 4


def test_each_tenant_asks_at_its_own_rate(owners: tuple[Owner, Owner]) -> None:
    """One question in a thousand seconds: a second one waits; another tenant's does not."""
    ours, theirs = (keys.issue_key(owner.tenant, "asks", [KeyScope.READ]) for owner in owners)
    with (
        with_settings(ASK__PER_SECOND=0.001, API__BURST_SECONDS=1_000),
        served() as api,
        api.client(ours.text) as mine,
        api.client(theirs.text) as other,
    ):

        def status(client: httpx.Client) -> httpx.Response:
            return client.post("/v1/ask", json={"question": BY_COUNTRY})

        assert status(mine).status_code == 200
        refused = status(mine)
        assert refused.status_code == 429
        assert "questions" in refused.json()["detail"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert status(other).status_code == 200
        assert mine.post("/v1/sql", json={"sql": "SELECT 1 AS one"}).status_code == 200


def test_a_question_is_never_sql(caller: Caller) -> None:
    question = "How many orders where country is 'x'' OR 1=1; DROP TABLE orders --' are there"
    answer = ask(caller, question)
    assert answer.status_code == 422 or answer.json()["rows"] == [{"number": 0}]
    quoted = answer_of(caller, 'How many orders are there where country is "D\'E"?')
    assert quoted["rows"] == [{"number": 0}]


def test_the_meaning_is_complete_without_annotations(caller: Caller) -> None:
    meaning = caller.http.get("/v1/datasets/orders/meaning").json()
    measures = [field["name"] for field in meaning["fields"] if field["measure"]]
    assert measures == ["amount", "count"]
    assert "address.zip" in [field["name"] for field in meaning["fields"]]
    assert [rollup["name"] for rollup in meaning["rollups"]] == ["daily"]


@pytest.mark.usefixtures("shared_processes")
def test_the_command_line_asks_and_describes(owners: tuple[Owner, Owner]) -> None:
    slug = owners[0].tenant.slug

    def pulse(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli.app, list(arguments))
        assert done.exit_code == code, done.output
        return done.output

    shown = pulse("ask", slug, BY_COUNTRY)
    assert "█" in shown
    assert "understood  number of rows in orders; by country" in shown
    narrow = pulse("ask", slug, "How many orders are there?").partition("understood")[0]
    assert "20" in narrow
    assert "How" not in narrow, "a title is wrapped within words by a narrow table"
    assert json.loads(pulse("ask", slug, BY_COUNTRY, "--json"))["rows"][0] == {"country": "DE", "number": 15}
    assert "orders has country" in pulse("ask", slug, "What is love?", code=2)
    assert "refused" in pulse("ask", slug, "--recent")
    assert "measure" in pulse("describe", slug, "orders")
    assert json.loads(pulse("describe", slug, "--json"))[0]["dataset"] == "orders"
