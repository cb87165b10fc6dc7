"""Poison messages: maximum size, nested, broken; dead letters too large for their topic."""

import random
from collections.abc import Iterator

from chaos import batches
from chaos.load import Event, Load
from chaos.scenario import Outcome, ReportProgress
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.surroundings import with_settings
from pulse_pipelines.domain.reasons import Reason
from pulse_resources.kafka import MAX_MESSAGE_BYTES

EVENTS = 100
OVERHEAD = 200
"""Size of the headers of a dead letter, for which a message of maximum size leaves no room."""


def run(stack: Stack | None, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Send poison among good events: the batch must settle, and every undeliverable byte must be kept."""
    draw, load, sent = random.Random(seed), Load(seed), Sent(batches.make_tenant())
    with with_settings(**batches.ENDLESS_ATTEMPTS):
        for number in range(1, round(amount) + 1):
            events = [*load.events(EVENTS), *_poison(draw)]
            draw.shuffle(events)
            sent.send(events)
            batches.finish(batches.plan([sent.tenant]), remaining_attempts=1)
            report_progress(number)
        batches.publish_overdue()
    return Outcome([sent], f"{amount:.0f} batches")


def _poison(draw: random.Random) -> Iterator[Event]:
    for size in (MAX_MESSAGE_BYTES - OVERHEAD, 2 * 1024 * 1024, 300_000):
        yield Event(draw.randbytes(1) * size, "orders", None, Reason.OVERSIZE)
        yield Event(b'{"event_id":"' + b"x" * size + b'"}', "orders", None, Reason.OVERSIZE)
    for payload in (b"", b"\xff\xfe", b'{"event_id":', b"NaN", b"null" * 9, draw.randbytes(5_000)):
        yield Event(payload, "orders", None, Reason.UNDECODABLE)
    for levels, of_objects in ((100, Reason.TOO_DEEP), (100_000, Reason.OVERSIZE)):
        yield Event(b"[" * levels + b"]" * levels, "orders", None, Reason.TOO_DEEP)
        yield Event(b'{"a":' * levels + b"1" + b"}" * levels, "orders", None, of_objects)
