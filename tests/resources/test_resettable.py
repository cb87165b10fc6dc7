"""A cache that may be cleared while a value is being made."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import stack as plugin

from pulse_resources.resettable import Resettable
from pulse_resources.settings import load_settings


def test_a_value_is_made_once_per_arguments() -> None:
    calls: list[tuple[int, int]] = []

    @Resettable
    def make(a: int, *, b: int = 0) -> object:
        calls.append((a, b))
        return object()

    assert make(1) is make(1)
    assert make(1, b=2) is make(1, b=2)
    assert make(1) is not make(1, b=2)
    assert calls == [(1, 0), (1, 2)]
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


FORKING = """
import os
from pulse_resources.resettable import Resettable

class Client:
    def __del__(self):
        os._exit(7)

parent = os.getpid()
make = Resettable(lambda: Client() if os.getpid() == parent else "the child's")
make.renew_in_children()
make()
child = os.fork()
if not child:
    os._exit(0 if make() == "the child's" else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_makes_its_own_value_and_does_not_close_its_parents() -> None:
    """Closing a producer of Kafka there waits for ever for a lock that a thread of the parent held."""
    subprocess.run([sys.executable, "-c", FORKING], check=True)


def test_settings_of_a_home_end_with_the_test_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").write_text('{"postgres": {"port": 1}}')
    with monkeypatch.context() as of_test:
        of_test.setenv("PULSE_HOME", str(tmp_path))
        teardown = plugin.pytest_runtest_teardown()
        next(teardown)
        load_settings.cache_clear()
        assert load_settings().postgres.port == 1, (
            "a thread reads them before the home is the earlier one again"
        )
    next(teardown, None)
    assert load_settings().postgres.port != 1
