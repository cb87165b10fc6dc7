"""The domain model: tenants, events, schemas, datasets, batches and quotas; plain Python without I/O."""
