"""The curated zone: tables and small summaries that are computed from each day of a dataset.

The path: `due` finds the days that have changed since they were computed; `compute` pins each table to a
snapshot and runs Spark, one statement for many tenants; `commit` writes Iceberg tables `<slug>__<rollup>` and
the rows of `summaries` that the HTTP API serves, both in one transaction.
"""
