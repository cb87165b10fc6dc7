"""Moves of datasets to a newer schema that rewrite files: one job, launched for each attempt."""
