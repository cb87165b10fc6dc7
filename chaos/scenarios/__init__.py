"""Scenarios, one module per kind, in the order in which they run."""

from functools import partial

from chaos.scenario import Scenario
from chaos.scenarios import (
    answers,
    busy,
    kills,
    losses,
    noise,
    operators,
    outages,
    pauses,
    pipes,
    poison,
    writers,
)
from chaos.stack import Kind

SCENARIOS = (
    Scenario("kill -9 of the run, at every step and at random moments", kills.run, 500, "kills"),
    Scenario("answer to COMMIT lost while another writer commits", answers.run, 20, "answers"),
    Scenario("run stopped, overtaken, continued", pauses.run, 20, "pauses"),
    Scenario("pipes killed at every step while their source is written", pipes.run, 100, "kills"),
    Scenario("poison: oversize, deep and broken messages", poison.run, 3, "batches"),
    Scenario("topic recreated, retention overtaking the position", losses.run, 4, "losses"),
    Scenario("batches, compaction, expiry, sweeps and backfills at once", writers.run, 30, "minutes"),
    Scenario("engines of a tenant beside all of these", partial(writers.run, external=True), 20, "minutes"),
    Scenario("operators and tenants at once", operators.run, 60, "minutes"),
    Scenario(
        "a tenant floods (100 times the others), one is all bad, one has lost its table",
        noise.run,
        on=Kind.DEFAULTS,
    ),
    Scenario(
        "busy machine: services killed beside 60 processes that compute",
        busy.run,
        10,
        "minutes",
        Kind.DEFAULTS,
    ),
    *(Scenario(n, partial(outages.run, f), on=Kind.DAGSTER) for n, f in outages.FAULTS.items()),
    *(Scenario(n, partial(outages.run, f), on=Kind.CLOCKS) for n, f in outages.CLOCKS.items()),
)
