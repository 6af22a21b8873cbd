"""The table of handlers in the documentation is the one that the handlers' cards make."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.cli.catalogue import OURS, as_markdown, listed_handlers

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
TABLE = re.compile(r"^\| handler \| an example is \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)


def test_the_table_is_what_the_command_prints():
    ours = [one for one in listed_handlers() if one.path.startswith(OURS)]
    (table,) = TABLE.findall(PAGE.read_text())
    assert table == as_markdown(ours), "put what `headrace handlers --markdown` prints into docs/handlers.md"


def test_every_handler_of_ours_has_a_row():
    ours = [one for one in listed_handlers() if one.path.startswith(OURS)]
    assert [one.path for one in ours if one.card is None] == []
