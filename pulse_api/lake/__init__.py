"""The Iceberg REST catalog over HTTP, for clients with a tenant's key."""
