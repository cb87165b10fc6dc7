"""Natural-language questions about a tenant's data: a semantic layer, and SQL generated from questions.

The path: `meaning` derives a semantic layer from a dataset's schema and rollups, `grammar` parses a question
into a plan (or a model writes SQL, `providers`), `write` generates SQL, and `answer` runs it like a caller's.
"""
