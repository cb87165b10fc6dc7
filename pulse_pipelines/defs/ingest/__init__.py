"""Micro-batches: the lag sensor plans them, the job `ingest` takes them through the stages."""
