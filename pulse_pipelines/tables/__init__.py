"""Iceberg tables: column types, data files, the raw zone, claims, the ledger and the commit protocol."""
