"""Whether a received event can land: its envelope, its schema, and what judging it may cost."""
