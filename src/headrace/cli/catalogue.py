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

from rich.console import Console

from headrace.cli.handlers import GROUP, factory_place, no_handler
from headrace.core.errors import ConfigurationError, as_type_name
from headrace.core.extras import install_command, requirements
from headrace.core.handler import HandlerCard
from headrace.handlers.cards import CARDS

OURS = "headrace.handlers."
"""The package of Headrace's own handlers."""

NAMES = ("an example", "its prediction", "with large_model", "threads")
"""Of the first words of a card."""
_UNSAID = "-"
_COLUMNS = ("an example is", "its prediction is", "with `large_model` its weights are", "threads")


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
    """The table of the documentation: all but the threads, which a page has no room for."""
    titles = ("handler", *_COLUMNS[:3])
    rows = [titles, ("---",) * len(titles), *map(_markdown_row, handlers)]
    return "\n".join(f"| {' | '.join(row)} |".replace("| --- ", "|---").replace("--- |", "---|") for row in rows)


def as_json(handlers: Iterable[Listed]) -> str:
    """A list for programs: plain texts, null where a handler says nothing."""
    return json.dumps([_facts(one) for one in handlers], indent=2)


def show_handlers(console: Console, handlers: Iterable[Listed]) -> None:
    """Prints a line for each handler that a command line can name; the last ones are those that cannot be used."""
    named = [one for one in handlers if one.name != _UNSAID]
    width = 2 + max((len(one.name) for one in named), default=0)
    for one in named:
        if not one.trouble:
            _print_line(console, f"{one.name:<{width}}{_line(one)}")
    missing = [one for one in named if one.trouble]
    if missing:
        _print_line(console, "\nNot installed here:")
    for one in missing:
        _print_line(console, f"{one.name:<{width}}{_line(one)}", style="dim")
    _print_line(console, "\n`headrace handlers NAME` says what a handler takes, and what to install.")


def handler_named(name: str) -> Listed:
    """The handler that a command line names.

    Raises:
        ConfigurationError: there is none; the message has the nearest name.
    """
    if factory_place(name) is None or ":" in name:
        raise ConfigurationError(no_handler(name))
    return next(one for one in listed_handlers() if one.name == name)


def _line(one: Listed) -> str:
    """What a handler is, in one line; of one that is broken, why."""
    if one.card is None:
        return one.trouble or one.path
    return one.card.summary or f"takes {plain(one.card)[0]}"


def _print_line(console: Console, line: str, style: str | None = None) -> None:
    """A terminal cuts what is too long for it."""
    cut = console.is_terminal and len(line) > console.width
    text = f"{line[: console.width - 3]}..." if cut else line
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


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
    """The first cell has a line for each name: beside each other they leave a page no room."""
    module, _, name = one.path.removeprefix(OURS).rpartition(".")
    option = [] if one.name == _UNSAID else [f"`--handler {one.name}`"]
    lines = [f"`{name}`", f"in `{module}`", *option, f"needs `{one.install}`"]
    return "<br>".join(lines), *_said(one.card)[:3]


def plain(card: HandlerCard) -> tuple[str, ...]:
    """For a screen, where Markdown has no meaning."""
    return tuple(word.replace("`", "") or _UNSAID for word in card[:4])


def _said(card: HandlerCard | None) -> tuple[str, ...]:
    return tuple(word.replace("|", r"\|") or _UNSAID for word in card[:4]) if card else (_UNSAID,) * 4
