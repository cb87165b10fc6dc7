"""The HTTP API for application teams."""
