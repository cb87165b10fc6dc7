"""Assets of runs that were deleted since: a tenant's pipe or dataset."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

import dagster as dg

from pulse_pipelines import pipes, registry

PARTITION = "dagster/partition"
TENANT = f"{PARTITION}/tenant"
"""Tag of runs of a partition of a dataset, which has several dimensions."""


class DeletedAssets:
    """Pipes and datasets that no longer exist, each looked up once, when it is needed."""

    def __init__(self) -> None:
        self._owners: dict[str, set[str]] = {}

    def all_of(self, record: dg.RunRecord) -> bool:
        """Whether all assets of a run are those of pipes and datasets that its tenant has deleted since."""
        tags, keys = record.dagster_run.tags, record.dagster_run.asset_selection or ()
        return bool(keys) and all(self._is_deleted(key.path, tags, record.create_timestamp) for key in keys)

    def _is_deleted(self, path: Sequence[str], tags: Mapping[str, str], at: datetime) -> bool:
        match path:
            case ["pipes", name]:
                created_at = self._pipes.get((tags.get(PARTITION, ""), name))
                return created_at is None or created_at > at
            case ["lake", slug] | ["curated", slug, _] if TENANT in tags:
                return tags[TENANT] not in self._owners_of(slug)
        return False

    @cached_property
    def _pipes(self) -> dict[tuple[str, str], datetime]:
        return pipes.creation_times()

    def _owners_of(self, slug: str) -> set[str]:
        if slug not in self._owners:
            self._owners[slug] = {tenant.slug for tenant in registry.family_owners(slug)}
        return self._owners[slug]
