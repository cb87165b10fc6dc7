"""Children that a supervisor adopts are collected when they have ended."""

import os
from pathlib import Path

import pytest

from chaos.waiting import wait
from pulse_resources.local import processes


@pytest.mark.parametrize("lists", [True, False], ids=["by the kernel's lists", "by all processes"])
def test_a_child_that_is_dead_at_two_calls_is_collected(lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not lists:
        monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    child = os.fork()
    if child == 0:
        os._exit(0)
    wait(lambda: child in processes.reap(set()), "the child is not seen to be dead")

    def collected() -> bool:
        processes.reap({child})
        return child not in processes.table()

    # While a thread of the child still ends, it is a zombie that cannot be collected.
    wait(collected, "the child stays")
    living = os.fork()
    if living == 0:
        os.read(os.pipe()[0], 1)
    assert living not in processes.reap(set())
    os.kill(living, 9)
    os.waitpid(living, 0)
