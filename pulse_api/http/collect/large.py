"""Work of a worker process on a large request: decompress, split and validate its events.

The process builds validators from the scope that a request brings along, and caches them.
"""

import pickle
from collections.abc import Mapping
from functools import lru_cache

from pulse_api.http.collect import body as bodies, entities
from pulse_api.http.collect.split import Item, is_empty, split
from pulse_api.http.collect.verdicts import Validation
from pulse_pipelines.validation.limits import event_limits
from pulse_pipelines.validation.validator import Validator
from pulse_resources.settings import load_settings

MAX_VALIDATORS = 100
MOST_SECONDS = 1.0
"""Time slice of one tenant's request in a process; then the next tenant has its turn."""


def warm() -> None:
    """Warm up a new process."""
    load_settings()


def begin(scope: bytes, content: bytes, encoding: str | None, headers: Mapping[str, str]) -> Validation:
    """Validate the events of a body, as many as the time slice permits.

    Args:
        scope: the tenant and its datasets, as pickled by `ScopedValidator.packed_scope`.
        encoding: content encoding of the body; None where it is not compressed.

    Raises:
        ProblemError: the body cannot be read, or exceeds a limit of requests.
    """
    if encoding is not None:
        content = bodies.decompress(content, encoding, load_settings().api)
    return go_on(scope, Validation(items_of(content, headers)))


def go_on(scope: bytes, validation: Validation) -> Validation:
    """Validate more events of a request, for another time slice."""
    validation.go_on(_validator(scope), MOST_SECONDS)
    return validation


def items_of(content: bytes, headers: Mapping[str, str]) -> list[Item]:
    """The events of a body, within the limits of the settings. Raises ProblemError as `split` does."""
    settings = load_settings()
    if entities.OF_SYNC in headers and is_empty(content):
        return []
    items = split(
        content,
        headers,
        max_events=settings.api.max_events,
        max_values=settings.api.max_values,
        max_depth=settings.ingest.max_event_depth,
        max_bytes=settings.ingest.max_event_bytes,
    )
    if (slug := headers.get(entities.DATASET)) is None:
        return items
    ingest = settings.ingest
    return entities.as_events(items, slug, max_bytes=ingest.max_event_bytes, max_depth=ingest.max_event_depth)


@lru_cache(MAX_VALIDATORS)
def _validator(scope: bytes) -> Validator:
    return Validator(pickle.loads(scope), event_limits())  # noqa: S301 - the server wrote it
