"""Content negotiation: which of the offered media types a request's Accept header prefers."""

from collections.abc import Sequence

from starlette.requests import Request

from pulse_api.http.problems import ProblemError

MOST_RANGES = 100
"""Ranges of a header that are read: each is compared with each offered type."""


def chosen(request: Request, offered: Sequence[str]) -> str:
    """The offered media type that the Accept header prefers; among equals, the one offered first.

    One with a parameter is chosen only if its range has the parameter, too; other parameters are ignored.

    Raises:
        ProblemError: 406, none is acceptable.
    """
    accept = ",".join(request.headers.getlist("accept")) or "*/*"
    ranges = [_range(part) for part in accept.split(",", MOST_RANGES)[:MOST_RANGES] if part.strip()]
    quality, *_, best = max((_quality(kind, ranges), ";" in kind, -i, kind) for i, kind in enumerate(offered))
    if quality <= 0:
        detail = f"the answer can be {', '.join(offered)}, not {accept[:200]}"
        raise ProblemError(406, "not-acceptable", detail, fix="Change the Accept header")
    return best


def _range(part: str) -> tuple[str, list[str], float]:
    """A media range with its parameters and its quality; an unreadable range gets quality 0."""
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        if name.strip() == "q":
            try:
                return kind, parameters, float(value)
            except ValueError:
                return kind, parameters, 0.0
    return kind, parameters, 1.0


def _quality(offered: str, ranges: Sequence[tuple[str, list[str], float]]) -> float:
    """Quality of an offered type, by the most specific range that matches."""
    kind, _, parameter = offered.partition(";")
    for pattern in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        accepted = [
            quality
            for written, parameters, quality in ranges
            if written == pattern and (not parameter or parameter in parameters)
        ]
        if accepted:
            return max(accepted)
    return 0.0
