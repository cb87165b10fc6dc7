"""A cache that may be cleared while a value is being made."""

import threading

from pulse_resources.resettable import Resettable


def test_a_value_is_made_once_per_arguments() -> None:
    made: list[tuple[int, int]] = []

    @Resettable
    def make(a: int, *, b: int = 0) -> object:
        made.append((a, b))
        return object()

    assert make(1) is make(1)
    assert make(1, b=2) is make(1, b=2)
    assert make(1) is not make(1, b=2)
    assert made == [(1, 0), (1, 2)]
    first = make(1)
    make.cache_clear()
    assert make(1) is not first


def test_a_value_that_is_in_the_making_does_not_outlive_a_clear() -> None:
    """A thread read the settings of one stack; another cleared the caches to use the next stack."""
    address, reading, cleared = ["the stack before"], threading.Event(), threading.Event()

    @Resettable
    def client() -> str:
        text = address[0]
        if not reading.is_set():
            reading.set()
            cleared.wait(0.2)  # a clear that does not wait would be over by then
        return text

    thread = threading.Thread(target=client)
    thread.start()
    reading.wait()
    address[0] = "this stack"
    client.cache_clear()
    cleared.set()
    thread.join()
    assert client() == "this stack"
