"""The shape of the code: who may import whom, how long a module gets, what must say what it is."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("pulse_client", "pulse_resources", "pulse_pipelines", "pulse_api")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
MAX_LINES = 300
PLAIN_LINES = 10
ENTRY_POINTS = {"defs", "main", "run", "service", "services"}
"""What a module is there for: its own docstring says it."""

P = "pulse_pipelines."
ROOMS = (
    "domain",
    "tables",
    "claims",
    "validation",
    "registry",
    "entities",
    "states",
    "ingest",
    "dead_letters",
    "backfill",
    "query",
    "curated",
    "lake",
    "sql",
    "ask",
    "maintenance",
    "moves",
    "pipes",
    "manifest",
    "erasure",
    "restore",
    "monitoring",
    "runtime",
    "defs",
)
"""Of `pulse_pipelines`: each imports only from those before it."""
MAY_IMPORT = {
    # Part of the code: the parts of Pulse that it may import, itself included. The longest name wins.
    "pulse_client": {"pulse_client"},
    "pulse_resources": {"pulse_resources"},
    **{
        P + room: {*(P + before for before in ROOMS[: number + 1]), "pulse_resources"}
        for number, room in enumerate(ROOMS)
    },
    P + "domain": {P + "domain", "pulse_resources.errors"},
    P + "runtime": {
        *(P + x for x in ("runtime", "ingest", "backfill", "curated", "tables", "validation")),
        "pulse_resources",
    },
    P + "definitions": {
        P + "defs",
        P + "curated",
        P + "pipes",
        P + "registry",
        P + "runtime",
        "pulse_resources",
    },
    "pulse_pipelines": set(),
    "pulse_api": {"pulse_api", "pulse_client", "pulse_resources", *(P + room for room in ROOMS[:-2])},
}
LOCAL = "pulse_resources.local"
STARTS_SERVICES = ("pulse_resources.local", "pulse_api.cli", "pulse_api.demo")
"""Who may import the embedded stack, besides `chaos` and `benchmarks`."""
VALIDATORS = {"jsonschema_rs", "orjson"}
KNOWS_DAGSTER = (P + "defs", P + "runtime", P + "definitions")


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def part_of(module: str) -> str:
    """The part of the code, a key of MAY_IMPORT, that a module is in."""
    return max((part for part in MAY_IMPORT if within(module, part)), key=len)


@cache
def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def imports(module: str) -> set[str]:
    """Everything that a module imports, wherever in it, as dotted names that exist."""
    modules: set[str] = set()
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively: write the whole name"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name if name in MODULES else str(node.module) for name in names}
    return modules


def findings(wrong: dict[str, set[str]]) -> dict[str, set[str]]:
    return {module: names for module, names in wrong.items() if names}


def test_the_list_of_modules_is_complete() -> None:
    assert len(MODULES) > 500
    assert {part_of(module) for module in MODULES} == set(MAY_IMPORT)
    assert "pulse_pipelines.ingest.land" in imports("pulse_pipelines.ingest.settle"), "from package import"


def test_a_module_imports_only_permitted_packages() -> None:
    """A finding is a module with what it may not import."""
    wrong: dict[str, set[str]] = {}
    for module in MODULES:
        allowed = MAY_IMPORT[part_of(module)]
        ours = {name for name in imports(module) if name.split(".")[0] in PACKAGES}
        wrong[module] = {name for name in ours if not any(within(name, part) for part in allowed)}
    assert findings(wrong) == {}


def test_the_embedded_stack_is_only_for_the_command_line() -> None:
    other_modules = [
        module for module in MODULES if not any(within(module, part) for part in STARTS_SERVICES)
    ]
    wrong = {module: {name for name in imports(module) if within(name, LOCAL)} for module in other_modules}
    assert findings(wrong) == {}


def test_the_domain_is_plain_python() -> None:
    allowed = sys.stdlib_module_names | VALIDATORS | {*PACKAGES}
    domain = [module for module in MODULES if within(module, P + "domain")]
    assert len(domain) > 10
    assert findings({m: {name.split(".")[0] for name in imports(m)} - allowed for m in domain}) == {}


def test_the_client_needs_httpx_alone() -> None:
    """It is installed in services of other people, without the rest of Pulse; `isal` is optional."""
    allowed = sys.stdlib_module_names | {"pulse_client", "httpx", "isal"}
    client = [module for module in MODULES if within(module, "pulse_client")]
    assert len(client) > 5
    assert findings({m: {name.split(".")[0] for name in imports(m)} - allowed for m in client}) == {}
    project = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())["project"]
    assert [re.split(r"\W", name)[0] for name in project["dependencies"]] == ["httpx"]
    assert [re.split(r"\W", name)[0] for name in project["optional-dependencies"]["fast"]] == ["isal"]


def test_pulse_distributes_the_client_too() -> None:
    assert (ROOT / "pulse_client").resolve() == (ROOT / "clients/python/pulse_client").resolve()
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "pulse_client*" in setuptools["packages"]["find"]["include"]
    assert "py.typed" in setuptools["package-data"]["pulse_client"]


def test_dagster_is_known_to_thin_adapters_only() -> None:
    other_modules = [module for module in MODULES if not any(within(module, part) for part in KNOWS_DAGSTER)]
    wrong = {m: {name for name in imports(m) if re.match(r"dagster\b|dagster_", name)} for m in other_modules}
    assert findings(wrong) == {}


def test_a_module_is_short() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > MAX_LINES} == {}


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(module: str) -> Iterator[Definition]:
    """Functions and classes at the top of a module, and functions of its public classes."""
    tops = [node for node in parse(module).body if isinstance(node, Definition) and node.name[0] != "_"]
    yield from tops
    for node in tops:
        if isinstance(node, ast.ClassDef):
            yield from (m for m in node.body if isinstance(m, Definition) and m.name[0] != "_")


def says_enough(node: Definition) -> bool:
    """It has a docstring, or is so plain that its name, its types and its module's docstring say it all.

    Plain are a function of few lines, data with computed fields, and an exception without a body.
    Dagster's definitions carry their description as an argument of the decorator.
    """
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    described = any("description=" in decorator for decorator in decorators)
    if ast.get_docstring(node) or described or node.name in ENTRY_POINTS:
        return True
    if isinstance(node, ast.ClassDef):
        data = any("dataclass" in decorator for decorator in decorators)
        data = data or {"BaseModel"} & {ast.unparse(base) for base in node.bases}
        return bool(data) or not any(isinstance(member, ast.FunctionDef) for member in node.body)
    first, last = node.body[0], node.body[-1]
    return "override" in decorators or (last.end_lineno or last.lineno) - first.lineno < PLAIN_LINES


def test_public_code_has_docstrings() -> None:
    assert [module for module in MODULES if not ast.get_docstring(parse(module))] == [], "no docstring"
    silent = {
        m: {f"{n.name}, line {n.lineno}" for n in public_definitions(m) if not says_enough(n)}
        for m in MODULES
    }
    assert findings(silent) == {}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


OF_ONE_MACHINE = re.compile(
    r"""(?<![\w./-])/(work|home|Users|opt/wheels)/\w   # folders that another machine has not
      | --(extra-)?index-url[ =]\S | --find-links | --trusted-host
      | artifactory | \bnexus[.-] | /simple/ | GOPROXY=h
    """,
    re.VERBOSE | re.IGNORECASE,
)


def test_no_file_depends_on_the_machine_that_it_was_written_on() -> None:
    lines = []
    for path in tracked():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if OF_ONE_MACHINE.search(line) or (len(ROOT.parts) > 2 and f"{ROOT}/" in line):
                lines.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not lines


def test_no_two_files_of_tests_have_one_name() -> None:
    # pytest imports them by their names alone, and refuses the second, at the end of a run of half an hour.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []
