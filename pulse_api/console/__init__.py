"""The console: pages in which a tenant's developer sees her datasets, served by the API at `/console`."""

HOME = "/console"
"""Path of the console on the API."""
