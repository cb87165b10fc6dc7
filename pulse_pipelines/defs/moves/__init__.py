"""Moves of datasets to a newer schema that write files again: one job, launched for each attempt at one."""
