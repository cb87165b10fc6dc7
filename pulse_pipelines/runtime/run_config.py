"""Run config restricted to literal values: `{"env": "NAME"}` does not read an environment variable.

Dagster gives each string, number and boolean of a `Config` a type that resolves such a name where the run
executes. So anybody who may launch a run could read the services' passwords in the run's errors and logs.
"""

from dagster._config.config_type import ConfigBoolInstance, ConfigIntInstance, ConfigStringInstance
from dagster._config.pythonic_config import conversion_utils

PLAIN = {
    "StringSource": ConfigStringInstance,
    "IntSource": ConfigIntInstance,
    "BoolSource": ConfigBoolInstance,
}
"""Replacement for each Dagster type that reads the environment, by that type's name."""


def take_values_alone() -> None:
    """Give plain types to the fields of every `Config` and resource defined from here on.

    Dagster has no setting for this. `dagster.yaml`, the operators' own file, may still name variables.
    """
    for name, plain in PLAIN.items():
        setattr(conversion_utils, name, plain)
