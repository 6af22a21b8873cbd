"""The list of installed handlers.

Headrace's own come from a table: a framework takes seconds to import, and may not be installed.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import warnings
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.handlers import GROUP
from headrace.core.card import HandlerCard
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.extras import install_command, requirements
from headrace.handlers.cards import CARDS

OURS = "headrace.handlers."
"""The package of Headrace's own handlers."""

_UNSAID = "-"
_WIDE = 120
"""Width of a terminal, in characters, that has room for all columns."""
_COLUMNS = (
    "handler, in `headrace.handlers`",
    "name on the command line",
    "an example is",
    "its prediction is",
    "with `large_model` its weights are",
    "threads",
    "install",
)


@dataclass(frozen=True)
class Listed:
    """A handler of an installed package."""

    name: str
    """Its name on the command line; "-" if it has none."""
    path: str
    """``package.module.Class``."""
    card: HandlerCard | None
    """None: it has none, or cannot be imported."""
    install: str
    """What ``pip install`` takes: the package, with its extra."""
    trouble: str = ""
    """Why it cannot be used; empty if it can."""


def listed_handlers() -> list[Listed]:
    """The handlers of all installed packages, Headrace's own first, in the order of their modules and names."""
    ours = {f"{OURS}{path.replace('.', ':')}": (_UNSAID, "headrace") for path in CARDS}
    named = {entry.value: (entry.name, _package(entry)) for entry in metadata.entry_points(group=GROUP)}
    handlers = [_listed(name, value, package) for value, (name, package) in (ours | named).items()]
    return sorted(handlers, key=lambda one: (not one.path.startswith(OURS), one.path.rpartition(".")[0], one.name))


def as_markdown(handlers: Iterable[Listed]) -> str:
    """The table of the documentation."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_markdown_row, handlers)]
    return "\n".join(f"| {' | '.join(row)} |".replace("| --- ", "|---").replace("--- |", "---|") for row in rows)


def as_json(handlers: Iterable[Listed]) -> str:
    """A list for programs: plain texts, null where a handler says nothing."""
    return json.dumps([_facts(one) for one in handlers], indent=2)


def show_handlers(console: Console, handlers: Iterable[Listed]) -> None:
    """Prints the table for people. A narrow terminal shows fewer columns; a pipe gets all, a line for each handler."""
    if not console.is_terminal:
        _print_lines(console, handlers)
        return
    wide = console.width >= _WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("name", *(_COLUMNS[2:6] if wide else _COLUMNS[2:4]), "install"):
        table.add_column(title.replace("`", ""), overflow="fold", no_wrap=title == "name")
    for one in handlers:
        said = _plain(one.card)
        row = [one.name, *(said if wide else said[:2]), one.trouble or "installed"]
        table.add_row(*map(escape, row), style="dim" if one.trouble else None)
    console.print(table)


def _print_lines(console: Console, handlers: Iterable[Listed]) -> None:
    titles = ("name", *(title.replace("`", "") for title in _COLUMNS[2:6]), "install")
    rows = [titles, *((one.name, *_plain(one.card), one.trouble or "installed") for one in handlers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True))
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _facts(one: Listed) -> dict[str, Any]:
    said: Iterable[str | None] = one.card[:4] if one.card else (None,) * 4
    facts = dict(zip(("example", "prediction", "weights", "threads"), said, strict=True))
    name = None if one.name == _UNSAID else one.name
    usable = {"usable": not one.trouble, "trouble": one.trouble or None}
    return {"name": name, "class": one.path, **facts, "install": one.install, **usable}


def _package(entry: metadata.EntryPoint) -> str:
    return (entry.dist and entry.dist.name) or entry.value.partition(".")[0]


def _listed(command: str, value: str, distribution: str) -> Listed:
    path, trouble = value.replace(":", "."), ""
    card = CARDS.get(path.removeprefix(OURS))
    if card is None:
        card, trouble = _imported_card(value)
    extra = card.extra if card else ""
    install = f"{distribution}[{extra}]" if extra else distribution
    if extra and (missing := _missing(distribution, extra)):
        trouble = f"not installed ({', '.join(missing)}): {install_command(distribution, extra, distribution)}"
    return Listed(command, path, card, install, " ".join(trouble.split()))


def _imported_card(value: str) -> tuple[HandlerCard | None, str]:
    """The card of another package's handler, which only its class has; and why the class cannot be imported.

    What its modules print and warn of on the way is kept out of the list.
    """
    module, _, name = value.partition(":")
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            card = getattr(attrgetter(name)(importlib.import_module(module)), "card", None)
    except ConfigurationError as error:
        return None, str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may even call sys.exit
        return None, f"cannot be imported: {as_type_name(error)}: {error}"
    return (card if isinstance(card, HandlerCard) else None), ""


def _missing(distribution: str, extra: str) -> list[str]:
    """The packages of an extra that are not installed; markers other than the extra's are ignored."""
    names = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in requirements(extra, distribution)]
    return [name for name in names if not _is_installed(name)]


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _markdown_row(one: Listed) -> tuple[str, ...]:
    name = one.name if one.name == _UNSAID else f"`{one.name}`"
    return f"`{one.path.removeprefix(OURS)}`", name, *_said(one.card), f"`{one.install}`"


def _plain(card: HandlerCard | None) -> tuple[str, ...]:
    """For a screen, where Markdown has no meaning."""
    return tuple(word.replace("`", "") or _UNSAID for word in card[:4]) if card else (_UNSAID,) * 4


def _said(card: HandlerCard | None) -> tuple[str, ...]:
    return tuple(word.replace("|", r"\|") or _UNSAID for word in card[:4]) if card else (_UNSAID,) * 4
