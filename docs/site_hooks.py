"""Hooks of `make docs`: pages outside of docs/ join the site, and links follow them there.

The pages are written to be read in a checkout. A link to a file that has no page on the site, such as a
module, becomes plain text.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages of the checkout that are not in docs/, by path, with their path on the site."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def relink(markdown: str, source: str) -> str:
    """The page with links that lead where their targets are on the site.

    Args:
        source: path of the page in the checkout.
    """
    page_place = _place(source)

    def moved(link: re.Match[str]) -> str:
        mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        place = _place(normpath(f"{dirname(source)}/{target}".lstrip("/")))
        if place is None:
            return text
        return f"{mark}[{text}]({relpath(place, dirname(str(page_place)) or '.')}{anchor})"

    parts = _FENCE.split(markdown)  # fenced code has odd numbers
    return "".join(part if number % 2 else _LINK.sub(moved, part) for number, part in enumerate(parts))


def _place(path: str) -> str | None:
    """Where a file of the checkout is on the site; None: it is not there."""
    if path in PAGES:
        return PAGES[path]
    inside = path.removeprefix("docs/")
    return inside if inside != path and (ROOT / path).suffix in (".md", ".png") else None


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of docs/."""
    from mkdocs.structure.files import File  # only here: tests read the rest without mkdocs

    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Relink a page."""
    sources = {place: source for source, place in PAGES.items()}
    place = page.file.src_uri
    return relink(markdown, sources.get(place, f"docs/{place}"))
