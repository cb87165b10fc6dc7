"""Erasure from tables of a tenant's own, where the tenant asks for it."""
