"""Interfaces of Pulse: HTTP API, REST catalog, MCP server, `pulse` command line, Python client, demo."""
