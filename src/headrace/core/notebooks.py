"""How results look in a notebook: a small table of escaped texts, cut where they are long."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import islice

from headrace.core.transferable import encodable_text

_LONGEST_TEXT, _LONGEST_DETAILS = 500, 10_000
"""Characters."""
_MOST_ROWS = 50


def html_table(title: str, rows: Iterable[tuple[str, str]], details: tuple[str, str] = ("", "")) -> str:
    """A table with a name and a text in each row; below it ``details``, a name and a long text, to be opened."""
    some = [*islice(rows, _MOST_ROWS + 1)]
    if len(some) > _MOST_ROWS:
        some[_MOST_ROWS:] = [("...", f"only the first {_MOST_ROWS} rows are shown")]
    lines = [f"<tr><th>{_cut(name)}</th><td>{_cut(text)}</td></tr>" for name, text in some]
    name, text = details
    more = f"<details><summary>{_cut(name)}</summary><pre>{_cut(text, _LONGEST_DETAILS)}</pre></details>"
    style = ' style="text-align: left"'
    return f"<table{style}><caption>{_cut(title)}</caption>{''.join(lines)}</table>{more if text else ''}"


def _cut(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Escapes a text for HTML, and leaves out the middle of a long one."""
    half = longest // 2
    return escape(encodable_text(text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"))
