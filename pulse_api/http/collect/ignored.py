"""Ignored members: those of accepted events' envelopes that no column has; only the raw zone keeps them.

Producers may add members of their own, so an event is not refused for them. But one may be misspelt.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pulse_pipelines.domain.event import ENVELOPE
from pulse_resources.errors import meant

MAX_MEMBERS = 20
"""Maximum different members that an answer names."""
MAX_NAME = 100
"""Characters of a name in an answer."""


class IgnoredMembers:
    """Counts the ignored members of one request's events."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()

    def note(self, members: Iterable[str]) -> None:
        """Count one event's ignored members."""
        for member in members:
            name = member[:MAX_NAME]
            if name in self._events or len(self._events) < MAX_MEMBERS:
                self._events[name] += 1

    def entries(self) -> list[dict[str, Any]]:
        """An entry for each member, by name."""
        return [
            {
                "member": name,
                "events": count,
                "detail": f"{name} is not a member of an event: no column has it",
                "fix": meant(name, ENVELOPE, "Put what is to be stored into context or data"),
            }
            for name, count in sorted(self._events.items())
        ]
