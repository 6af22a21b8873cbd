"""The site builds without a warning, fetches nothing, and has every page."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import headrace
import headrace.beam
import headrace.testing

pytestmark = pytest.mark.large

ROOT = Path(__file__).parents[2]


class Fetched(HTMLParser):
    """The addresses that a browser fetches by itself when it shows a page."""

    def __init__(self, text):
        super().__init__()
        self.addresses = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(found.get("src") or "")
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.addresses.append(found.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site's folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    assert (site / "project" / "CONTRIBUTING.html").exists()
    assert "def build(" in re.sub("<[^>]+>", "", (site / "project" / "examples" / "dead_letters.py.html").read_text())


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = {address for page in site.rglob("*.html") for address in Fetched(page.read_text()).addresses}
    assert {address for address in fetched if "//" in address} == set()
    assert [path for path in site.rglob("*") if path.suffix == ".pyc"] == []


def test_search_works_in_a_page_that_is_opened_as_a_file(site):
    """A browser lets such a page start no worker and fetch no index: scripts bring both."""
    assert '<script src="../iframe-worker.js">' in (site / "recipes" / "index.html").read_text()
    assert "window.Worker" in (site / "iframe-worker.js").read_text()
    assert "Batching" in (site / "search" / "search_index.js").read_text().removeprefix("var __index = ")


@pytest.mark.parametrize("module", [headrace, headrace.beam, headrace.testing], ids=lambda module: module.__name__)
def test_reference_has_every_public_name(site, module):
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    assert ":::" not in re.sub("<[^>]+>", "", pages)
    anchors = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="(headrace\.[\w.]+)"', pages)}
    of_beam_or_for_types = {"WatchFilePattern", "load_model_status"}
    of_beam_or_for_types |= {name for name in module.__all__ if re.fullmatch(r"\w+T", name)}
    assert set(module.__all__) - anchors - of_beam_or_for_types == set(), "name it in docs/reference"
    assert module is not headrace or "on_failure" in pages


def test_reference_of_the_command_line_has_every_command(site):
    text = re.sub("<[^>]+>", "", (site / "reference" / "command-line.html").read_text())
    assert {"--threshold", "--clean", "--markdown"} <= set(re.findall(r"--[a-z-]+", text))
    assert "headrace retry" in text
