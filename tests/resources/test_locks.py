"""Advisory locks of sessions."""

import uuid

import pytest

from pulse_resources import locks
from pulse_resources.locks import Lock
from pulse_resources.settings import Settings


def test_a_lock_is_free_as_soon_as_its_block_ends(stack: Settings) -> None:
    """Not only once the server has noticed that its session was closed."""
    for _ in range(200):
        of = uuid.uuid4()
        with locks.session(Lock.PIPE, of) as held:
            assert held is not None
        with locks.session(Lock.PIPE, of) as again:
            assert again is not None


def test_a_lock_that_another_holds_stays_with_it(stack: Settings) -> None:
    of = uuid.uuid4()
    with locks.session(Lock.PIPE, of) as held:
        assert held is not None
        for _ in range(2):
            with locks.session(Lock.PIPE, of) as other:
                assert other is None


def test_a_lost_connection_hides_no_error(stack: Settings) -> None:
    """The lock is lost with its session: what the block raised is what its caller sees."""
    of = uuid.uuid4()

    def lost() -> None:
        with locks.session(Lock.PIPE, of) as held:
            assert held is not None
            held.close()
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        lost()
    with locks.session(Lock.PIPE, of, wait_seconds=30) as again:
        assert again is not None
