"""The version of the package, alone: the build reads it without importing httpx."""

__version__ = "0.1.0"
