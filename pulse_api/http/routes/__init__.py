"""The endpoints, a file per resource."""
