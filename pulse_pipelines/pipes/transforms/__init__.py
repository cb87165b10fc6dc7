"""Transforms: pipes whose source is a query over the latest state of datasets of entities."""
