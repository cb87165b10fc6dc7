"""Expressions: what an entity is indexed by, a closed set of functions that give one value per version."""
