"""How long a start may take: decided by processor time, with made-up numbers."""

from functools import partial
from operator import mul
from urllib.error import URLError

import pytest

from pulse_resources.local.patience import Patience
from pulse_resources.local.service import LONGEST_ANSWER_S, patient


def end_second(share: float, *, attempt: int = 1, until: int = 100_000) -> int | None:
    """Second at which a service with a time-out of 90 s is given up that has this share of a processor."""
    patience = Patience(90, attempt, now=0)
    seconds = range(until)
    return next((now for now in seconds if not patience.lasts(now, partial(mul, share, now))), None)


@pytest.mark.parametrize(("attempt", "at"), [(1, 91), (2, 181), (3, 361), (4, 361), (5_000, 361)])
def test_a_start_without_progress_is_given_up_after_its_timeout_and_a_later_one_has_longer(
    attempt: int, at: int
) -> None:
    assert end_second(0, attempt=attempt) == at


def test_a_start_that_gets_a_fiftieth_of_a_processor_lasts() -> None:
    assert end_second(0.02, until=900) is None


def test_the_processor_time_of_an_idle_process_is_not_progress() -> None:
    assert end_second(0.003) == 91


@pytest.mark.parametrize(("attempt", "longest"), [(1, 900), (3, 3600)])
def test_a_start_that_computes_without_end_is_given_up(attempt: int, longest: int) -> None:
    at = end_second(1, attempt=attempt)
    assert at
    assert longest < at < 1.1 * longest + 20


def test_a_start_that_stops_computing_is_given_up() -> None:
    patience = Patience(90, 1, now=0)
    assert patience.lasts(91, lambda: 5.0)
    assert patience.lasts(180, lambda: 5.0), "it is not asked before a whole time-out has passed"
    assert not patience.lasts(182, lambda: 5.0)


def test_processor_time_of_an_ended_process_hides_no_progress() -> None:
    patience = Patience(90, 1, now=0)
    assert patience.lasts(91, lambda: 50.0)
    assert patience.lasts(182, lambda: 2.0), "a member ended, the others computed"
    assert not patience.lasts(273, lambda: 2.0)


def test_a_service_that_is_slow_to_say_that_it_is_ready_is_given_longer() -> None:
    timeouts, takes = list[float](), 5.0

    def answers(seconds: float) -> bool:
        timeouts.append(seconds)
        if seconds < takes:
            raise URLError(TimeoutError()) if len(timeouts) == 1 else TimeoutError
        if takes == 0:
            raise ConnectionRefusedError
        return True

    ready = patient(answers)
    assert [ready() for _ in range(3)] == [False, False, True]
    assert timeouts == [2, 4, 8]
    takes = 1e9
    assert not any(ready() for _ in range(5))
    assert timeouts[-1] == LONGEST_ANSWER_S
    takes, timeouts[:] = 0.0, []
    assert not any(ready() for _ in range(2))
    assert timeouts == [LONGEST_ANSWER_S] * 2, "a refusal is an answer"
