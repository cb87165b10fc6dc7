"""The MCP server: a tenant's lake as tools, resources and prompts, over HTTP with a key, or over stdio."""
