"""Clients of outside systems, one module each; imports nothing from the other packages."""
