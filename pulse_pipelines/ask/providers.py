"""Choice of the provider that generates queries, by the settings."""

from pulse_pipelines.ask.answer import Grammar, Provider
from pulse_pipelines.ask.models import Model
from pulse_resources.errors import Terminal
from pulse_resources.settings import load_settings

URLS = {
    "anthropic": "https://api.anthropic.com/v1/messages",
    "openai": "https://api.openai.com/v1/chat/completions",
}


def of_settings() -> Provider:
    """The provider that the settings name. Raises Terminal: a model lacks a setting."""
    ask = load_settings().ask
    if ask.provider == "grammar":
        return Grammar()
    if not ask.model:
        raise Terminal("no model is named", fix="Set PULSE_ASK__MODEL, or PULSE_ASK__PROVIDER=grammar")
    url = ask.url or URLS[ask.provider]
    return Model(ask.model, ask.provider, url, ask.key.get_secret_value(), ask.seconds, ask.samples)
