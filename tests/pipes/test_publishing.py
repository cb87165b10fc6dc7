"""Rows that a broker refuses fail the run, although only failures are reported."""

import os

import pytest
from support.ingest import Owner
from support.topics import set_limit

from pulse_pipelines.pipes.publishing import POLLED, publish
from pulse_resources.errors import Transient


def test_what_the_broker_refuses_is_noticed(owner: Owner) -> None:
    small, large = (b"k", b"row"), (b"k", os.urandom(2_000))
    assert publish(owner.tenant.topic, [small] * (POLLED + 1)).rows == POLLED + 1
    set_limit(owner.tenant.topic, 1_000)
    for rows in ([large], [small, large] * POLLED):
        with pytest.raises(Transient, match="did not acknowledge rows"):
            publish(owner.tenant.topic, rows)
