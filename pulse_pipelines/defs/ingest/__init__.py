"""Micro-batches: the lag sensor plans them, the job `ingest` runs them through the stages."""
