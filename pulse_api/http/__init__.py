"""The HTTP front door, for application teams."""
