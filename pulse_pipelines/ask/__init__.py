"""Questions about a tenant's own data: what its columns mean, and queries made of questions.

The path: `meaning` reads what a dataset's schema and rollups say, `grammar` makes a plan of a question (or a
model makes SQL of it, `providers`), `write` makes SQL of a plan, and `answer` runs it as anybody's SQL runs.
"""
