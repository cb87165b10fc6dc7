"""Pipes that are killed while their source is written: short runs of the scenario of `make chaos`."""

import pytest

from chaos.scenarios import pipes
from pulse_resources.settings import Settings

SEED = 214
"""The first kill is of a run that has loaded its rows, and has not said so."""


@pytest.mark.parametrize(
    ("kills", "names"),
    [
        pytest.param(1, ["captured"], marks=pytest.mark.slow),
        pytest.param(6, ["copied", "noted"], marks=pytest.mark.slow),
        pytest.param(8, list(pipes.PIPES), marks=pytest.mark.slow),
    ],
)
def test_killed_pipes_have_the_rows_of_the_source_and_no_wrong_deletions(
    stack: Settings, kills: int, names: list[str]
) -> None:
    done = pipes.run(None, SEED, kills, lambda _: None, names)
    assert list(done.findings) == []
    assert sum(done.places.values()) == kills
    assert done.events > 0
