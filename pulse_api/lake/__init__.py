"""The REST catalog over HTTP: Iceberg's specification, for whoever has a tenant's key."""
