"""Collecting: from a request's body to acknowledged events on the tenant's topic."""
