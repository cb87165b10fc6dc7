"""Answers of the collect endpoint, and events, for tests of pulse_client without a server."""

import json
from collections.abc import Iterable
from typing import Any

import httpx

BUSY = {"type": "urn:pulse:problem:unavailable", "detail": "slow", "fix": "later", "request_id": "r-1"}


def accepted(events: int, *, refused: Iterable[int] = (), **members: Any) -> httpx.Response:
    """The API's answer about so many events, of which some are refused."""
    verdicts = [verdict(index) for index in refused]
    counts = {"accepted": events - len(verdicts), "dead_lettered": 0, "refused": len(verdicts)}
    return httpx.Response(207 if verdicts else 202, json=counts | {"verdicts": verdicts} | members)


def verdict(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "event_id": f"e-{index}",
        "status": "refused",
        "reason": "schema_violation",
        "pointer": "/data",
        "detail": "wrong",
        "later": "a member of a later version",
    }


def problem(status: int, body: Any = BUSY, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.Response(status, headers=headers, content=content)


def event(event_id: str | None = "e", **data: Any) -> dict[str, Any]:
    return {"event_id": event_id, "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z", "data": data}
