"""SQL of callers over a tenant's own tables, in processes that can reach nothing else."""
