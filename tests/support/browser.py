"""A headless Chromium, to use the UI as a person does; pictures of it, where they are asked for."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from chaos.waiting import PATIENCE_S

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1400, "height": 900}
PATIENCE_MS = PATIENCE_S * 1000
SETTLE_MS = 1_500
"""Before a picture is taken: what is there comes first, its details a moment later."""

Picture = Callable[[str], None]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser while the block runs; skips on a machine that has none (`make chromium` installs it)."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no Chromium: run `make chromium`")
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a browser of its own."""
    with chromium() as browser:
        new_page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        new_page.set_default_timeout(PATIENCE_MS)
        yield new_page


@pytest.fixture
def picture(page: Page) -> Picture:
    """Keeps what the page shows in the folder PULSE_PICTURES, if that is set."""
    target = os.environ.get("PULSE_PICTURES")

    def keep(name: str) -> None:
        if target:
            Path(target).mkdir(exist_ok=True)
            page.wait_for_timeout(SETTLE_MS)
            page.screenshot(path=Path(target) / f"{name}.png")

    return keep
