"""Iceberg's REST Compatibility Kit against the catalog, with a tenant's key and vended keys alone."""

from pathlib import Path

import pytest
from support import rck
from support.catalog import LAKE
from support.http import Api
from support.ingest import make_owner

from pulse_pipelines.registry import keys

pytestmark = pytest.mark.slow
OUTSIDE = {
    "createViewWithCustomMetadataLocation",
    "testLoadTableWithMissingMetadataFile",
}
"""They write to `file:/tmp`, or move files there: none passes with its tables in an object store."""


def test_the_catalog_is_compatible(catalog: Api, tmp_path: Path) -> None:
    tenant = make_owner().tenant
    verdict = rck.judged(catalog.url, tenant.slug, keys.issue_key(tenant, "kit", LAKE).text, tmp_path)
    print(len(verdict.passed), "passed", len(verdict.skipped), "skipped", *verdict.failed, sep="\n")
    assert {name.partition(".")[2].partition("(")[0] for name in verdict.failed} <= OUTSIDE
    assert len(verdict.passed) >= 145
