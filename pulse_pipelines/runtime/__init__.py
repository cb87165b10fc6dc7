"""What stands under Dagster and Spark in Pulse: processes, storage and defaults."""
