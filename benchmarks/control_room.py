"""Dagster UI with many tenants, days and datasets: duration of the queries that it sends."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from itertools import islice, product
from typing import Any

import dagster as dg
import orjson
from dagster._core.events import DagsterEvent, DagsterEventBatchMetadata, StepMaterializationData
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID

from benchmarks import load, tick
from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.partitions import asset_key, tenant_partitions
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.local import dagster as local_dagster
from pulse_resources.settings import load_settings

_AT_A_TIME = 8
_TOGETHER = 500
"""Events per insert, as DAGSTER_EVENT_BATCH_SIZE sets."""
_PATIENCE_S = 180.0

ASSETS = """query Assets { assetNodes { id assetKey { path } groupName description owners { __typename }
    kinds tags { key value } computeKind isPartitioned partitionDefinition { description }
    dependencyKeys { path }
    hasAssetChecks } }"""
LIVE = """query AssetGraphLive($keys: [AssetKeyInput!]!) {
    assetNodes(assetKeys: $keys, loadMaterializations: true) { id opNames assetMaterializations(limit: 1) {
        timestamp runId } assetObservations(limit: 1) { timestamp }
        assetChecksOrError { ... on AssetChecks { checks { name
            executionForLatestMaterialization { status } } } }
        partitionStats { numMaterialized numMaterializing numPartitions numFailed } }
    assetsLatestInfo(assetKeys: $keys) { id unstartedRunIds inProgressRunIds } }"""
HEALTH = """query PartitionHealth($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
    ... on AssetNode { id partitionKeysByDimension { name type partitionKeys }
    assetPartitionStatuses { ... on MultiPartitionStatuses { primaryDimensionName ranges { primaryDimStartKey
        primaryDimEndKey primaryDimStartTime primaryDimEndTime secondaryDim {
        ... on DefaultPartitionStatuses { materializedPartitions materializingPartitions failedPartitions }
        ... on TimePartitionStatuses { ranges { status startKey endKey } } } } } } } } }"""
DEFINITION = """query AssetDefinition($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
    ... on AssetNode { id description
        metadataEntries { label ... on TableSchemaMetadataEntry { schema { columns { name type } } }
            ... on TableMetadataEntry { table { records } } ... on TextMetadataEntry { text } }
        assetMaterializations(limit: 100) { timestamp partition metadataEntries { label
            ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } } } } } }"""


def build(tenants: int, slugs: int) -> tuple[list[Tenant], list[str]]:
    """Make tenants that each own a dataset of every slug."""
    owners = tick.build(tenants)
    names = [f"dataset_{number:02}" for number in range(slugs)]

    def populate(tenant: Tenant) -> None:
        schema = registry.publish_schema(tenant, load.DATASET, orjson.dumps(load.SCHEMA).decode())
        for name in names:
            registry.create_dataset(tenant, name, schema.schema_uri)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(populate, owners))
    return owners, names


def instance() -> dg.DagsterInstance:
    """Dagster instance of the running stack."""
    os.environ |= local_dagster.environment(load_settings())
    return dg.DagsterInstance.get()


def fill(instance: dg.DagsterInstance, slug: str, tenants: list[Tenant], days: int) -> float:
    """Report a slug's partitions as materialized, as the job `ingest` does; returns events per second."""
    began, count = time.perf_counter(), 0
    cells = product(tenants, (date.today() - timedelta(days=back) for back in range(days)))
    while batch := list(islice(cells, _TOGETHER)):
        name = str(uuid.uuid4())
        for index, (tenant, day) in enumerate(batch, 1):
            materialization = dg.AssetMaterialization(
                asset_key(slug),
                partition=dg.MultiPartitionKey({"day": str(day), "tenant": tenant.slug}),
                metadata={"dagster/partition_row_count": 1_000 + count % 700, "freshness_seconds": 12.5},
            )
            event = DagsterEvent(
                event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
                job_name=RUNLESS_JOB_NAME,
                event_specific_data=StepMaterializationData(materialization),
            )
            together = DagsterEventBatchMetadata(name, index == len(batch))
            instance.report_dagster_event(event, run_id=RUNLESS_RUN_ID, batch_metadata=together)
            count += 1
    return count / (time.perf_counter() - began)


def wait_for_assets(slugs: list[str], tenants: list[Tenant]) -> float:
    """Seconds until the UI knows every slug, each with all tenants as partitions."""
    began = time.monotonic()
    expected = set(slugs)
    with instance() as dagster:
        while time.monotonic() - began < _PATIENCE_S:
            shown = {node["assetKey"]["path"][-1] for node in ask(ASSETS)["assetNodes"]}
            names = [str(tenant_partitions(slug).name) for slug in slugs]
            partitions = map(dagster.get_dynamic_partitions, names)
            if expected <= shown and all(len(shown_tenants) >= len(tenants) for shown_tenants in partitions):
                return time.monotonic() - began
            time.sleep(1)
    raise TimeoutError(f"the UI does not show all of {slugs}")


def measure(slugs: list[str], times: int) -> Iterator[tuple[str, float, float, int]]:
    """Query, seconds of the first response and of the fastest later one, and response bytes."""
    keys = [{"path": asset_key(slug).path} for slug in slugs]
    queries: dict[str, tuple[str, dict[str, Any]]] = {
        "asset catalog: all assets": (ASSETS, {}),
        "asset graph: state of all assets, refreshed every few seconds": (LIVE, {"keys": keys}),
        "asset page: definition, columns, 100 latest materializations": (DEFINITION, {"key": keys[0]}),
        "partitions page: every cell of the grid": (HEALTH, {"key": keys[0]}),
    }
    for label, (query, variables) in queries.items():
        spent, size = [], 0
        for _ in range(times):
            began = time.perf_counter()
            size = len(json.dumps(ask(query, variables)))
            spent.append(time.perf_counter() - began)
        yield label, spent[0], min(spent[1:]), size


def load_seconds() -> float:
    """Seconds to build all definitions in this process; runs and the code server build less."""
    from pulse_pipelines.definitions import defs

    began = time.perf_counter()
    defs().get_repository_def()
    return time.perf_counter() - began


def ask(query: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
    """A GraphQL query to the web server."""
    return local_dagster.ask(load_settings(), query, variables, _PATIENCE_S)
