"""Places: few runs of pipes in each direction proceed at a time; dagster.yaml limits them by tags."""

from collections.abc import Mapping

import dagster as dg

from pulse_pipelines.defs.launches import UNFINISHED
from pulse_pipelines.domain.pipes import Definition, Transform
from pulse_pipelines.pipes.turns import OthersWait

WAY, TENANT = "pulse/pipes", "pulse/pipes-of"


def way_of(definition: Definition) -> str:
    """The direction whose places the runs of a pipe take: `in`, `out`, or `computed`.

    A transform waits for no server of its tenant, and may compute for hours: it takes no place of those
    that bring something in.
    """
    if definition.delivers:
        return "out"
    return "computed" if isinstance(definition.other_end, Transform) else "in"


def place_tags(tenant: str, way: str) -> Mapping[str, str]:
    """Tags of a run, by the slug of its tenant and its way."""
    return {WAY: way, TENANT: f"{tenant}/{way}"}


def waiting_others(instance: dg.DagsterInstance, tenant: str, way: str) -> OthersWait:
    """Whether a run of another tenant waits for a place, and for none of its own tenant's runs."""

    def others_wait() -> bool:
        runs = instance.get_runs(dg.RunsFilter(tags={WAY: way}, statuses=UNFINISHED))
        queued = {run.tags[TENANT] for run in runs if run.status == dg.DagsterRunStatus.QUEUED}
        under_way = {run.tags[TENANT] for run in runs if run.status != dg.DagsterRunStatus.QUEUED}
        return bool(queued - under_way - {place_tags(tenant, way)[TENANT]})

    return others_wait
