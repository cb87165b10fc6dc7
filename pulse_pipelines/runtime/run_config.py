"""Run config that holds values alone: no `{"env": "NAME"}` for the value of an environment variable.

Dagster gives each text, number and flag of a `Config` a type that looks such a name up where the run goes on.
Who may launch a run could so read the services' passwords: the value stands in the run's errors and logs.
"""

from dagster._config.config_type import ConfigBoolInstance, ConfigIntInstance, ConfigStringInstance
from dagster._config.pythonic_config import conversion_utils

PLAIN = {
    "StringSource": ConfigStringInstance,
    "IntSource": ConfigIntInstance,
    "BoolSource": ConfigBoolInstance,
}
"""What stands for each type of Dagster's that reads the environment, by that type's name."""


def take_values_alone() -> None:
    """Give the fields of every `Config` and resource that is defined from here on the plain types.

    Dagster has no setting for it. `dagster.yaml`, the operators' own file, still names variables.
    """
    for name, plain in PLAIN.items():
        setattr(conversion_utils, name, plain)
