"""Claims: which event ids a dataset has rows of, as sorted runs of digests in Postgres."""
