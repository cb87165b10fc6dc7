"""Examination of a schema before it is published: columns, cost, and whether a dataset can follow it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pulse_pipelines.domain.schemas.compatibility import Incompatibility, incompatibilities
from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.examination import Examination, examine
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry.datasets import find_dataset
from pulse_resources.settings import load_settings


@dataclass(frozen=True)
class ExaminedSchema:
    examination: Examination
    bound: Bound
    incompatibilities: Sequence[Incompatibility] | None
    """What keeps the dataset from moving to it; None: no dataset was named."""


def examine_schema(tenant: Tenant, document: str, slug: str | None = None) -> ExaminedSchema:
    """Examine a JSON Schema, and whether a dataset of the tenant can move to it.

    Raises:
        UserError: it cannot be published.
        NotFound: the tenant has no such dataset.
    """
    ingest = load_settings().ingest
    bound = Bound(ingest.max_event_bytes, ingest.max_schema_seconds)
    examination, obstacles = examine(document, bound), None
    if slug is not None:
        current = check_document(find_dataset(tenant, slug).document)
        obstacles = incompatibilities(current, examination.document)
    return ExaminedSchema(examination, bound, obstacles)
