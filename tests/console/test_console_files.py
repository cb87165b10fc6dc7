"""The console's files as the API serves them: policy, caching, size, and no text that becomes markup."""

import hashlib
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from pulse_api.console.pages import FILES, KINDS, release
from pulse_api.http.app import create_app

VENDOR = Path(__file__).with_name("vendor")
HEAVIEST = 400_000
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser")
INLINE = re.compile(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|javascript:")


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app())


@pytest.mark.parametrize(
    "path", ["/console", "/console/", "/console/datasets/flights", "/console/pipes/%E2%82%AC"]
)
def test_each_address_of_the_console_is_its_page(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (answer.content, answer.headers["cache-control"]) == (release().page, "no-cache")
    assert not INLINE.search(answer.text)
    assert "set-cookie" not in answer.headers
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_files_are_kept_by_their_hash(client: TestClient) -> None:
    current = release()
    assert set(re.findall(r"/static/(\w+)/", current.page.decode())) == {current.version}
    for name in current.files:
        answer = client.get(f"/console/static/{current.version}/{name}")
        assert (answer.status_code, answer.content) == (200, current.files[name])
        assert answer.headers["content-type"] == KINDS[Path(name).suffix]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path", ["0123456789abcdef/app.js", "{}/absent.js", "{}/index.html", "{}/..%2Fpages.py"]
)
def test_no_other_file_is_served(client: TestClient, path: str) -> None:
    answer = client.get("/console/static/" + path.format(release().version))
    assert b"def show_page" not in answer.content
    assert answer.status_code == 404 or answer.content == release().page


def test_the_console_weighs_little() -> None:
    assert len(release().page) + sum(map(len, release().files.values())) <= HEAVIEST


@pytest.mark.parametrize("path", sorted(FILES.glob("*.js")), ids=lambda path: path.name)
def test_no_module_makes_markup_of_text(path: Path) -> None:
    assert not MARKUP.search(path.read_text())


def test_vendored_scripts_have_their_recorded_hashes() -> None:
    lines = re.findall(r"^\| `([^`]+)`.*`(\w{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE)
    scripts = [path.name for path in VENDOR.iterdir() if path.suffix == ".js"]
    assert [name for name, _ in lines] == sorted(scripts)
    for name, digest in lines:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
