"""POST /v1/oauth/tokens: a short-lived access token for a key, by each grant that clients use.

client_credentials   the key is the client's secret, in the form or as Basic
token exchange       a token, or a key, is exchanged for a token that lasts longer
"""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import orjson
from starlette.requests import Request
from starlette.responses import Response

from pulse_api.http.collect.body import received
from pulse_api.http.problems import ProblemError
from pulse_api.lake.auth import Caller, identify, passwords
from pulse_api.lake.routing import open_endpoint
from pulse_api.lake.state import lake_state
from pulse_pipelines.domain import token

MAX_BYTES = 16 * 1024
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a token type
_MAX_FIELDS = 20


async def _tokens(request: Request) -> Response:
    state = lake_state(request)
    host = request.client.host if request.client else None
    with state.body_memory.of(host) as holding:
        content = await received(request, MAX_BYTES, holding)
    try:
        form = {
            name: values[-1]
            for name, values in parse_qs(
                content.decode(), strict_parsing=True, max_num_fields=_MAX_FIELDS
            ).items()
        }
    except ValueError:
        return _refused("invalid_request", "the body is not a form (application/x-www-form-urlencoded)")
    grant = form.get("grant_type")
    if grant == "client_credentials":
        candidates = [form.get("client_secret", ""), *_header(request)]
    elif grant == _EXCHANGE:
        # After its token has expired, a Java client sends that token as subject and the key beside it.
        candidates = [form.get("subject_token", ""), *_header(request)]
    else:
        return _refused("unsupported_grant_type", f"grant_type is client_credentials or {_EXCHANGE}")
    caller = await _first(request, [text for text in candidates if text])
    if caller is None:
        return _refused("invalid_client", "no key, or one that is not in force", 401)
    ends = datetime.now(UTC) + timedelta(seconds=state.token_seconds)
    if caller.key.expires_at is not None:
        ends = min(ends, caller.key.expires_at)
    answer = {
        "access_token": token.issue(state.token_secret, caller.tenant.tenant_id, caller.key.key_id, ends),
        "token_type": "bearer",
        "issued_token_type": _ACCESS_TOKEN,
        "expires_in": max(1, int((ends - datetime.now(UTC)).total_seconds())),
    }
    if scope := form.get("scope"):
        answer["scope"] = scope[:200]
    return _answer(answer)


def _header(request: Request) -> list[str]:
    return passwords(request.headers.get("authorization", ""))


async def _first(request: Request, candidates: list[str]) -> Caller | None:
    """The caller of the first of these credentials that is in force, if any is."""
    for text in candidates:
        try:
            return await identify(request, text)
        except ProblemError as problem:
            if problem.status != 401:
                raise
    return None


def _answer(document: dict[str, object], status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(orjson.dumps(document), status, headers, media_type="application/json")


def _refused(error: str, description: str, status: int = 400) -> Response:
    return _answer({"error": error, "error_description": description}, status)


routes = [open_endpoint("POST", "/v1/oauth/tokens", _tokens)]
