"""The process itself: its priority, limits, watchdog and fail points."""
