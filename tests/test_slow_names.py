"""What seldom-run tests name is there: else a name that was moved is only missed by `make test-slow`."""

import ast
import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SLOW = sorted(path for path in ROOT.rglob("test_*.py") if "mark.slow" in path.read_text())
OURS = ("pulse_api", "pulse_pipelines", "pulse_resources", "chaos", "benchmarks")


def missing(path: Path) -> Iterator[str]:
    """Attributes of our modules that a file names and they lack."""
    tree = ast.parse(path.read_text())
    modules: dict[str, types.ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            home = importlib.import_module(node.module)
            for alias in node.names:
                attribute = getattr(home, alias.name, None) or _module(f"{node.module}.{alias.name}")
                if attribute is None:
                    yield f"{node.module}.{alias.name}"
                elif isinstance(attribute, types.ModuleType):
                    modules[alias.asname or alias.name] = attribute
    local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and type(node.ctx) is ast.Store}
    local |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for name in local:
        modules.pop(name, None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if not hasattr(module, node.attr) and _module(f"{module.__name__}.{node.attr}") is None:
                yield f"{module.__name__}.{node.attr}"


def _module(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.parametrize("path", SLOW, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_used_by_slow_tests_exist(path: Path) -> None:
    assert list(missing(path)) == []
