"""Endpoints of the REST catalog, a module per kind of resource."""
