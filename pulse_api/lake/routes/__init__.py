"""Endpoints of the REST catalog, a module for each kind of thing."""
