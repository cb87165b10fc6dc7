"""Loads of a table by dlt, in its own environment, configured by JSON on its input; imports none of Pulse.

Prints the seconds of each load.
"""

import json
import sys
import time
from typing import Any

import dlt  # type: ignore[import-not-found]
from dlt.common.libs.pyiceberg import get_iceberg_tables  # type: ignore[import-not-found]
from dlt.sources.credentials import AwsCredentials  # type: ignore[import-not-found]
from dlt.sources.sql_database import sql_table  # type: ignore[import-not-found]

CHUNK_ROWS = 100_000


def main() -> None:
    """Load, and prove it."""
    arguments = json.load(sys.stdin)
    merge = arguments["disposition"] == "merge"
    credentials = AwsCredentials(
        aws_access_key_id=arguments["access_key"],
        aws_secret_access_key=arguments["secret_key"],
        region_name=arguments["region"],
        endpoint_url=arguments["endpoint"],
    )
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=arguments["folder"],
        destination=dlt.destinations.filesystem(arguments["bucket"], credentials=credentials),
        dataset_name="bench",
    )
    spent = []
    for _ in range(arguments["times"]):
        rows = sql_table(
            credentials=arguments["source"],
            table=arguments["table"],
            backend="pyarrow",
            chunk_size=CHUNK_ROWS,
            reflection_level="full_with_precision",
            query_adapter_callback=lambda query, table: query.where(table.c.id <= arguments["rows"]),
        )
        how: Any = {"disposition": "merge", "strategy": "upsert"} if merge else "replace"
        rows.apply_hints(primary_key="id", table_format="iceberg", write_disposition=how)
        began = time.monotonic()
        pipeline.run(rows)
        spent.append(time.monotonic() - began)
    table = get_iceberg_tables(pipeline, arguments["table"])[arguments["table"]]
    ids = table.scan(selected_fields=("id",)).to_arrow().column("id")
    assert len(ids) == len(ids.unique()) == arguments["rows"], len(ids)
    print(json.dumps(spent))


main()
