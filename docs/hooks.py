"""What MkDocs runs while it builds the site: links to files outside ``docs``, and the reference of the command line.

Links in Markdown are written as GitHub follows them: relative to their file, to anywhere in the project. The site takes
its pages from ``docs``, so each other file that a page links to becomes a page of the site below ``project/``.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HOME = "README.md"
"""The repository's first page; on the site ``docs/index.md`` takes its place."""
PROJECT = "project/"
COMMANDS = "reference/command-line.md"
COMMANDS_HERE = "<!-- commands -->"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)\s#]+)(?=[#)])")
"""A target within the project, without its anchor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file outside ``docs`` that a page in the site links to, or the navigation names."""
    named = re.findall(rf"{PROJECT}([\w./-]+)", str(config.nav))
    to_read = [*named, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(to_read)
    while to_read:
        path = to_read.pop()
        if not path.startswith("docs/"):
            files.append(File.generated(config, _in_site(path), content=_page_of(path)))
        new = {target for target in _targets(path) if target != HOME and not target.startswith("docs/")} - seen
        seen |= new
        to_read += new
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - as MkDocs calls it
    """Turns a page's links into those of the site; and writes the command line's reference."""
    uri = page.file.src_uri
    path = uri.removeprefix(PROJECT) if uri.startswith(PROJECT) else f"docs/{uri}"
    if not (ROOT / path).is_file():  # the text of a program
        return markdown
    if uri == COMMANDS:
        markdown = markdown.replace(COMMANDS_HERE, _commands())

    def in_site(link: re.Match[str]) -> str:
        target = _target(path, link[1])
        return link[1] if target is None else posixpath.relpath(_in_site(target), posixpath.dirname(uri) or ".")

    return LINK.sub(in_site, markdown)


def _targets(path: str) -> Iterator[str]:
    """The project's files that a Markdown file links to."""
    if path.endswith(".md"):
        for link in LINK.findall((ROOT / path).read_text()):
            if (target := _target(path, link)) is not None:
                yield target


def _target(path: str, link: str) -> str | None:
    """The file, relative to the project's folder, that a link in a file leads to; None: there is no such file.

    Of a folder it is the README.
    """
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if (ROOT / target / HOME).is_file():
        target = f"{target}/{HOME}"
    return target if (ROOT / target).is_file() else None


def _in_site(path: str) -> str:
    """Where a file of the project is in the site."""
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PROJECT + (path if path.endswith(".md") else f"{path}.md")


def _page_of(path: str) -> str:
    """The Markdown of a file outside ``docs``."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{Path(path).suffix.removeprefix('.')}\n{text}````\n"


def _commands() -> str:
    """The reference of every command, as typer writes it from the commands' own help; without its title."""
    command = [sys.executable, "-m", "typer", "headrace.cli.main", "utils", "docs", "--name", "headrace"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\n")[2]
