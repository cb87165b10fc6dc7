"""Expressions by which entities are indexed: a closed set of functions that give one value per version."""
