"""What the registry and the embedded stack import, and when."""

import subprocess
import sys
from pkgutil import iter_modules

import pytest

from pulse_pipelines import registry

CLIENTS = {"duckdb", "pandas", "pyarrow", "pyiceberg", "pyspark"}
"""Libraries whose import takes longer than a small command."""


def modules_after(code: str) -> set[str]:
    """Modules that a new process has imported after this code."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_supervisor_and_the_registry_import_no_table_clients() -> None:
    code = "import pulse_resources.local.supervisor; from pulse_pipelines import registry"
    assert not modules_after(f"{code}; registry.list_tenants") & CLIENTS


def test_a_command_for_tenants_imports_no_client_of_tables() -> None:
    assert not modules_after("import pulse_api.cli.tenant, pulse_api.cli.key") & CLIENTS


def test_a_process_that_forks_imports_all_modules() -> None:
    imported = modules_after("from pulse_pipelines import registry; registry.import_all()")
    assert {f"{registry.__name__}.{module.name}" for module in iter_modules(registry.__path__)} <= imported


def test_each_name_is_that_of_its_module() -> None:
    for name, module in registry._MODULE_OF.items():
        assert getattr(registry, name) is getattr(getattr(registry, module), name)
    assert not hasattr(registry, "no_such_name")


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(registry, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="pyarrow"):
        registry.__getattr__("table_rows")
