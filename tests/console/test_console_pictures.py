"""Pictures of the console, for people to look at: `PULSE_PICTURES=folder pytest tests/console -m slow`.

With `PULSE_PICTURES=docs/pictures` and `-k docs` it takes those of docs/console.md.
"""

import os
from pathlib import Path

import pytest
from console.conftest import OpenTab, Shop
from console.test_console import PAGES, wait_until_loaded

OF_THE_DOCS = {"1-overview": "", "2-dead-letters": "/dead-letters", "3-dataset": "/datasets/orders"}
MOST_BYTES = 150_000
SIZES = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_page_has_its_picture(
    shop: Shop, open_tab: OpenTab, tmp_path: Path, width: int, scheme: str
) -> None:
    folder = Path(os.environ.get("PULSE_PICTURES", tmp_path))
    tab, key = open_tab(width, scheme), shop.key()
    for number, path in enumerate(PAGES):
        page = tab.open(path, key)
        wait_until_loaded(page)
        if path.startswith("/query"):
            page.get_by_role("button", name="Run").click()
            page.get_by_role("button", name="CSV", exact=True).wait_for()
        name = path.partition("?")[0].strip("/").replace("/", "-") or "overview"
        picture = folder / f"{number:02}-{name}-{width}-{scheme}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 1_000


@pytest.mark.slow
def test_pictures_of_the_docs_are_small(shop: Shop, open_tab: OpenTab, tmp_path: Path) -> None:
    folder = Path(os.environ.get("PULSE_PICTURES", tmp_path))
    tab, key = open_tab(1100), shop.key()
    for name, path in OF_THE_DOCS.items():
        page = tab.open(path, key)
        wait_until_loaded(page)
        picture = folder / f"console-{name}.png"
        page.screenshot(path=picture, full_page=False, clip={"x": 0, "y": 0, "width": 1100, "height": 640})
        assert picture.stat().st_size <= MOST_BYTES
