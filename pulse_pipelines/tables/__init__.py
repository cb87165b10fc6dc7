"""How rows become an Iceberg table: column types, files, the raw zone, and the one way to commit."""
