"""The chart of deploy/helm/pulse: its files, and the variables that it gives to each service."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from chaos.hosts.composed import ROOT

CHART = ROOT / "deploy" / "helm" / "pulse"
EXAMPLES = tuple(sorted(CHART.glob("ci/*-values.yaml")))
Values = Mapping[str, Any]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def merge_values(example: Path) -> Values:
    """The chart's values with those of a file above them, as helm merges them."""

    def merged(below: Any, above: Any) -> Any:
        if isinstance(below, dict) and isinstance(above, dict):
            return below | {name: merged(below.get(name), value) for name, value in above.items()}
        return above

    values: Values = merged(read_yaml(CHART / "values.yaml"), read_yaml(example))
    return values


def variables(table: Values, values: Values, service: str) -> dict[str, str | tuple[str, str]]:
    """Variables of a service: the value, or the secret and its key.

    A value that the user left empty is omitted.
    """
    fixed = table["services"][service].get("environment", {})
    remote = "sc://pulse-spark:15002/;session_id=6f1c6a0e-8a53-4d0e-9d43-0c3c1f0d7b55"
    plain: dict[str, str | tuple[str, str]] = {"PULSE_SPARK__REMOTE": remote}
    for layer in (values["settings"], values["services"][service]["settings"], table["environment"]):
        plain |= {name: value for name, value in layer.items() if value}
    secrets = {
        name: (place.get("secret") or values["existingSecret"], place["key"])
        for name, place in values["secrets"].items()
    }
    environment = secrets | plain | fixed
    return {
        name: value
        for name, value in environment.items()
        if all(service in only for prefix, only in table["only"].items() if name.startswith(prefix))
    }
