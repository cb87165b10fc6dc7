"""The console: pages that show a tenant's developers their datasets, served by the API at `/console`."""

HOME = "/console"
"""Path of the console on the API."""
