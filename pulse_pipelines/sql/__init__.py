"""Callers' SQL over a tenant's own tables, in sandboxed processes."""
