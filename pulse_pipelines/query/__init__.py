"""Reading tables: previews through DuckDB, snapshots, and which files a query needs."""
