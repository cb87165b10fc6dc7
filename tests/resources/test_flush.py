"""How long a flush waits for Kafka, by a clock of its own."""

from dataclasses import dataclass, field

import pytest
from support.clock import Clock

from pulse_resources import kafka


@dataclass
class Producer:
    """Has messages that are acknowledged at these times."""

    clock: Clock
    acknowledged_at: list[float] = field(default_factory=list)

    def poll(self, _timeout: float) -> int:
        return 1 if round(self.clock.now) % 7 == 0 and self._step() else 0

    def _step(self) -> bool:  # events of other kinds, such as errors of a connection
        self.clock.now += 1
        return True

    def __len__(self) -> int:
        return sum(at > self.clock.now for at in self.acknowledged_at)


@pytest.mark.parametrize(
    ("acknowledged_at", "remaining"),
    [([], 0), ([8.0, 16.0, 24.0, 32.0], 0), ([8.0, 30.0, 31.0], 2), ([11.0], 1)],
)
def test_the_limit_is_for_each_acknowledgement(
    monkeypatch: pytest.MonkeyPatch, acknowledged_at: list[float], remaining: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(kafka, "time", clock)
    monkeypatch.setattr(kafka, "NAP_S", 0.5)
    assert kafka.flush(Producer(clock, acknowledged_at), 10.0) == remaining  # type: ignore[arg-type]
