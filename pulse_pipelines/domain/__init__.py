"""What Pulse is about, in plain Python and without I/O."""
