"""Who makes queries of questions, by the settings."""

from pulse_pipelines.ask.answer import Grammar, Provider


def of_settings() -> Provider:
    """The provider that the settings name."""
    return Grammar()
