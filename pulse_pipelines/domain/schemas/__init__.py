"""JSON Schema: what may be published, what it costs, its columns, and what violates it."""
