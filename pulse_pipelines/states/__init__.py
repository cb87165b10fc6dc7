"""States and windows: the newest event of each key of a dataset, and sums over time, in Postgres."""
