"""Upkeep of the lake: compaction, manifests, history, orphans and retention, where they are needed."""
