"""Tenants, and the names of everything that belongs to one: topics, namespace, tables and folders."""

import re
from dataclasses import dataclass
from uuid import UUID

from pulse_resources.errors import UserError

SLUG = re.compile(r"[a-z][a-z0-9_]{0,62}")
CURATED = "__"
"""Separator in names of curated tables, `<slug>__<rollup>`; no dataset's slug contains it."""
LATEST = "latest"
"""What no rollup is called: `<slug>__latest` is the latest state of a dataset of entities."""


def check_slug(kind: str, slug: str) -> str:
    """Check that a slug can name a topic, a table, an object prefix and a Dagster partition; returns it.

    Raises:
        UserError: it cannot.
    """
    if not SLUG.fullmatch(slug):
        raise UserError(
            f"{slug!r} is not a valid {kind} slug",
            fix="Use 1 to 63 characters of a-z, 0-9 and _, starting with a letter",
        )
    if kind == "dataset" and CURATED in slug:
        raise UserError(
            f"{slug!r} is not a valid dataset slug", fix=f"Names with {CURATED} belong to curated tables"
        )
    return slug


@dataclass(frozen=True)
class Tenant:
    tenant_id: UUID
    slug: str

    @property
    def topic(self) -> str:
        return f"pulse.{self.tenant_id.hex}.events"

    @property
    def dead_letter_topic(self) -> str:
        return f"pulse.{self.tenant_id.hex}.events.dlq"

    @property
    def namespace(self) -> str:
        """Iceberg namespace; the catalog's row-level security derives the same name."""
        return f"pulse_{self.tenant_id.hex}"

    def curated_table(self, slug: str, rollup: str) -> tuple[str, str]:
        """Iceberg name of the table of a dataset's rollup."""
        return self.namespace, f"{slug}{CURATED}{rollup}"

    def table_location(self, bucket: str, slug: str, dataset_id: UUID) -> str:
        """Folder of a dataset's table; unique per dataset, since files of a deleted dataset stay."""
        return f"s3://{bucket}/iceberg/{self.namespace}/{slug}/{dataset_id.hex[:12]}"

    def raw_prefix(self, bucket: str, dataset: str) -> str:
        return f"s3://{bucket}/raw/{self.tenant_id.hex}/{dataset}"
