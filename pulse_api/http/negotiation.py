"""Content negotiation: which of the offered media types a request's Accept header prefers."""

from collections.abc import Sequence

from starlette.requests import Request

from pulse_api.http.problems import ProblemError


def chosen(request: Request, offered: Sequence[str]) -> str:
    """The offered media type that the Accept header prefers; among equals, the one offered first.

    Raises:
        ProblemError: 406, none is acceptable.
    """
    accept = ",".join(request.headers.getlist("accept")) or "*/*"
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    quality, _, best = max((_quality(kind, ranges), -i, kind) for i, kind in enumerate(offered))
    if quality <= 0:
        detail = f"the answer can be {', '.join(offered)}, not {accept[:200]}"
        raise ProblemError(406, "not-acceptable", detail, fix="Change the Accept header")
    return best


def _range(part: str) -> tuple[str, float]:
    """A media range and its quality; an unreadable range gets quality 0."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        if name.strip() == "q":
            try:
                return kind, float(value)
            except ValueError:
                return kind, 0.0
    return kind, 1.0


def _quality(kind: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Quality of an offered type, by the most specific range that matches."""
    for pattern in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        found = [quality for written, quality in ranges if written == pattern]
        if found:
            return max(found)
    return 0.0
