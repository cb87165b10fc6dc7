"""Runs over files that are killed at each of their steps: nothing is lost, doubled or deleted."""

import json

import pytest
from support.entities import as_model, pages
from support.faults import often
from support.forked import forked
from support.ingest import make_owner
from support.lake import spark
from support.pipes import bring, settle

from chaos.sources import SOURCE, Folder, stored_source
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes.run import run
from pulse_resources.settings import Settings


def run_alone(tenant: Tenant) -> None:
    """A run in a process of its own."""
    run(spark(), tenant, "planes", 2)


@pytest.mark.parametrize(
    "point", often(["pipe.looked", "pipe.begun", "pipe.loaded", "pipe.sent"], "pipe.loaded")
)
def test_a_run_over_files_that_is_killed_is_made_good_by_the_next(stack: Settings, point: str) -> None:
    owner, folder = make_owner(), Folder()
    members = {"pipe": "planes", "source": SOURCE, "path": "*.ndjson", "key": ["tail"], "dataset": "planes"}

    def write(*tails: str) -> None:
        folder.write("1.ndjson", b"".join(json.dumps({"tail": tail}).encode() + b"\n" for tail in tails))

    with stored_source(owner.tenant, folder.address):
        write("N1", "N2", "N3")
        pipes.create(owner.tenant, definition(members))
        syncs.allow(owner.tenant, "planes", 0.5)
        bring(owner)
        write("N1", "N2", "N4")
        forked(run_alone, owner.tenant, PULSE_FAIL_POINT=point).killed()
        settle(owner)
        if point != "pipe.sent":
            assert "N3" in dict(as_model(pages(owner, slug="planes"))), "nothing is deleted by half a run"
            assert dict(as_model(pages(owner, slug="planes")))["N3"] is not None
        bring(owner)
    log = as_model(pages(owner, slug="planes"))
    assert sorted((key, content is not None) for key, content in log) == [
        ("N1", True),
        ("N2", True),
        ("N3", False),
        ("N3", True),
        ("N4", True),
    ]
