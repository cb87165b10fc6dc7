"""The site of `make docs`: its navigation and links. Its build checks the rest."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.site_hooks import PAGES, ROOT, relink


def entries(nav: Any) -> list[str]:
    """The paths of a navigation."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [path for child in children for path in entries(child)]


def test_each_page_has_one_place_in_the_navigation() -> None:
    nav = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(nav) == sorted([*pages, *PAGES.values()])


@pytest.mark.parametrize(
    ("source", "markdown", "expected"),
    [
        ("README.md", "[SQL](docs/sql.md#limits)", "[SQL](sql.md#limits)"),
        ("README.md", "[changes](CHANGELOG.md)", "[changes](changelog.md)"),
        ("docs/sql.md", "[why](decisions/queries.md)", "[why](decisions/queries.md)"),
        ("docs/sql.md", "[numbers](../benchmarks/README.md#sql)", "[numbers](benchmarks.md#sql)"),
        ("docs/decisions/sql.md", "[numbers](../../benchmarks/README.md)", "[numbers](../benchmarks.md)"),
        ("docs/decisions/tests.md", "[state](../state.md)", "[state](../state.md)"),
        ("docs/ask.md", "[the module](../pulse_resources/notify.py)", "the module"),
        ("docs/ask.md", "[here](#limits), [there](https://example.org/a.md)", None),
        ("docs/ask.md", "```sh\necho [x](../a.py)\n```", None),
        ("README.md", "![graph](docs/pictures/1-graph.png)", "![graph](pictures/1-graph.png)"),
    ],
)
def test_a_link_leads_to_the_page_on_the_site(source: str, markdown: str, expected: str | None) -> None:
    assert relink(markdown, source) == (expected or markdown)


def test_pages_outside_of_docs_exist() -> None:
    assert all(Path(ROOT, source).is_file() for source in PAGES)
