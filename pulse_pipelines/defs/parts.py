"""Datasets' assets as parts of the definitions: a part per slug, which the code server builds by itself."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace
from datetime import date
from uuid import UUID

import dagster as dg

from pulse_pipelines import registry
from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.defs.curated.assets import curated_key
from pulse_pipelines.defs.curated.sensor import curated_due
from pulse_pipelines.defs.datasets.partitions import asset_key, first_cell, grid_start
from pulse_pipelines.defs.datasets.presentation import groups, present
from pulse_pipelines.defs.ingest.sensor import ingest_lag
from pulse_pipelines.defs.pipes.assets import pipe_key
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import Family, Member, Outline
from pulse_pipelines.runtime.parts import Likeness

_ANY = "ANY"  # no slug has capitals
MODEL = Family(_ANY, (Member(Tenant(UUID(int=0), _ANY), UUID(int=0), _ANY, _ANY, "", '{"fields": []}'),))
"""A family that does not exist. Its ops are in the code server's definitions, for those of all families."""


class DatasetParts:
    """Parts (see `runtime.parts.Parts`): the asset of a slug, what is curated from it, and their checks."""

    def __init__(self, define: Callable[..., dg.Definitions]) -> None:
        """Args:
        define: builds the definitions of families and of pipes; `placed` is the group of each slug.
        """
        self._define = define
        self._placed: dict[str, str] = {}
        self._version, self._outlines = 0, dict[str, Outline]()

    def versions(self) -> Mapping[str, str]:
        outlines = self._current_outlines()
        self._placed = groups(outlines)
        team = defaultdict[str, list[TeamRollup]](list)
        for rollup in rollups.team_rollups():
            team[rollup.dataset].append(rollup)
        grid = grid_start()
        return {
            outline.slug: f"{outline.version} {self._placed[outline.slug]} {grid} {team.get(outline.slug)}"
            for outline in outlines
        }

    def _current_outlines(self) -> list[Outline]:
        """Outlines of all families, of which those are read that have changed since the last call."""
        version = registry.version()  # before them: what changes in between is read again
        since = self._version if self._version <= version else 0
        changed = {outline.slug: outline for outline in registry.list_outlines(since)}
        outlines = (self._outlines if since else {}) | changed
        self._outlines = {slug: outlines[slug] for slug in sorted(outlines) if outlines[slug].members}
        self._version = version
        return list(self._outlines.values())

    def build(self, names: Collection[str]) -> dg.Definitions:
        families = registry.list_families(names)
        return self._define(families, {}, placed=groups(families) | self._placed)

    def likenesses(self, names: Collection[str]) -> Mapping[str, Likeness]:
        """Those of slugs without rollups of teams."""
        alike = set(names) - {rollup.dataset for rollup in rollups.team_rollups()}
        families = registry.list_families(alike) if alike else []
        shown = present(families, groups(families) | self._placed)
        acting = rollups.slugs_with_actor(alike) if alike else set()
        return {
            family.slug: Likeness(
                (family.slug in acting, first_cell(family.first_day)), dg.AssetSpec(**shown[family.slug])
            )
            for family in families
        }

    def build_model(self, form: tuple[bool, date], name: str) -> dg.Definitions:
        """Args:
        form: whether some tenant's schema names an actor; the first day of the grid.
        """
        acts, first_day = form
        family = Family(name, (replace(MODEL.members[0], slug=name),), first_day)
        return self._define([family], {}, placed={name: name}, acting={name} if acts else ())

    def build_assets(self, keys: Set[dg.AssetKey]) -> dg.Definitions:
        slugs = {slug for key in keys if (slug := self.part_of(key))}
        names = sorted(key.path[-1] for key in keys if self.part_of(key) is None)
        return self._define(registry.list_families(slugs), dict.fromkeys(names))

    def assets_by_sensor(self) -> Mapping[str, dg.AssetSelection]:
        return {
            ingest_lag.name: dg.AssetSelection.key_prefixes("lake"),
            curated_due.name: dg.AssetSelection.key_prefixes("curated"),
        }

    def part_of(self, key: dg.AssetKey) -> str | None:
        return None if key == pipe_key(key.path[-1]) else key.path[1]

    def model_of(self, key: dg.AssetKey) -> str:
        dataset = key == asset_key(key.path[-1])
        return (asset_key(_ANY) if dataset else curated_key(_ANY, DAILY.name)).to_python_identifier()
