"""Endpoints of the HTTP API, a module per resource."""
