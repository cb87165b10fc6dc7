"""The path of an event, a file a step: plan, drain, conform, dedup, land, settle, dead_letter."""
