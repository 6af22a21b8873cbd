"""``headrace handlers``: the installed handlers and, with a name, what one takes.

Headrace's own come from a table: a framework takes seconds to import, and may not be installed.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import io
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from typing import Any

from rich.console import Console

from headrace.cli.console import say
from headrace.cli.handlers import parameter_of_model, search_here
from headrace.cli.options import NAMED
from headrace.core.errors import ConfigurationError, as_type_name, install_command, requirements
from headrace.core.handler import HandlerCard
from headrace.core.spelling import HANDLER_OPTIONS, HANDLERS, factory_place, no_handler
from headrace.handlers.cards import CARDS

OURS = "headrace.handlers."
"""The package of Headrace's own handlers."""

_FACTS = ("an example", "its prediction", "with large_model", "threads")
"""Of the first words of a card."""
_TITLES = ("handler", "an example is", "its prediction is", "with `large_model` its weights are")
_UNSAID = "-"
_WIDEST = 100


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

    @property
    def said(self) -> tuple[str, ...]:
        """What its card says: example, prediction, weights, threads."""
        return tuple(word or _UNSAID for word in self.card[:4]) if self.card else (_UNSAID,) * 4

    @property
    def summary(self) -> str:
        """What it is, in one line; of one that is broken, why."""
        if self.card is None:
            return self.trouble or self.path
        return self.card.summary or f"takes {_plain(self.said[0])}"


def listed_handlers() -> list[Listed]:
    """The handlers of all installed packages, Headrace's own first, in the order of their modules and names."""
    ours = {f"{OURS}{path.replace('.', ':')}": (_UNSAID, "headrace") for path in CARDS}
    named = {
        entry.value: (entry.name, entry.dist.name if entry.dist else entry.value.partition(".")[0])
        for entry in metadata.entry_points(group=HANDLERS)
    }
    handlers = [_listed(name, value, package) for value, (name, package) in (ours | named).items()]
    return sorted(handlers, key=lambda one: (not one.path.startswith(OURS), one.path.rpartition(".")[0], one.name))


def handler_named(name: str) -> Listed:
    """The handler that a command line names; the error for one that does not exist has the nearest name."""
    if factory_place(name) is None or ":" in name:
        raise ConfigurationError(no_handler(name))
    return next(one for one in listed_handlers() if one.name == name)


def as_markdown(handlers: Iterable[Listed]) -> str:
    """The table of the documentation: all but the threads, which a page has no room for."""
    rows = [_TITLES, *map(_markdown_row, handlers)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(_TITLES) + "|", *lines[1:]])


def as_json(handlers: Iterable[Listed]) -> str:
    """A list for programs: plain texts, null where a handler says nothing."""
    return json.dumps([_as_dict(one) for one in handlers], indent=2)


def show_handlers(console: Console, handlers: Iterable[Listed]) -> None:
    """Prints a line for each handler that a command line can name; the last ones are those that cannot be used."""
    named = [one for one in handlers if one.name != _UNSAID]
    width = 2 + max((len(one.name) for one in named), default=0)
    usable = [f"{one.name:<{width}}{one.summary}" for one in named if not one.trouble]
    others = [f"{one.name:<{width}}{one.summary}" for one in named if one.trouble]
    lines = [*usable, *(["", "Not installed here:", *others] if others else [])]
    for line in [*lines, "", "`headrace handlers NAME` says what a handler takes, and what to install."]:
        is_cut = console.is_terminal and len(line) > console.width
        say(console, f"{line[: console.width - 3]}..." if is_cut else line)


def show_handler(console: Console, one: Listed) -> None:
    """Prints what one handler takes; its parameters only if what it needs is installed."""
    for line in _lines_of(one, min(console.width, _WIDEST) if console.is_terminal else _WIDEST):
        say(console, line)


def example_of(one: Listed) -> str:
    """A command that runs a handler."""
    source, _, rest = ((one.card.command if one.card else "") or "rows.csv").partition(" ")
    words = ["headrace run", source, "--handler", one.name, rest, "--output predictions.jsonl"]
    return " ".join(word for word in words if word)


def _as_dict(one: Listed) -> dict[str, Any]:
    said: Iterable[str | None] = one.card[:4] if one.card else (None,) * 4
    return {
        "name": None if one.name == _UNSAID else one.name,
        "class": one.path,
        **dict(zip(("example", "prediction", "weights", "threads"), said, strict=True)),
        "install": one.install,
        "usable": not one.trouble,
        "trouble": one.trouble or None,
    }


def _markdown_row(one: Listed) -> tuple[str, ...]:
    """The first cell has a line for each name: beside each other they leave a page no room."""
    module, _, name = one.path.removeprefix(OURS).rpartition(".")
    option = [] if one.name == _UNSAID else [f"`--handler {one.name}`"]
    lines = [f"`{name}`", f"in `{module}`", *option, f"needs `{one.install}`"]
    return "<br>".join(lines), *(word.replace("|", r"\|") for word in one.said[:3])


def _listed(command: str, value: str, distribution: str) -> Listed:
    path, trouble = value.replace(":", "."), ""
    card = CARDS.get(path.removeprefix(OURS))
    if card is None:
        try:
            card = getattr(_imported(value), "card", None)
        except ConfigurationError as error:
            trouble = str(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a module may even call sys.exit
            trouble = f"cannot be imported: {as_type_name(error)}: {error}"
    card = card if isinstance(card, HandlerCard) else None
    extra = card.extra if card else ""
    install = f"{distribution}[{extra}]" if extra else distribution
    if extra and (missing := [*_missing(distribution, extra)]):
        trouble = f"not installed ({', '.join(missing)}): {install_command(distribution, extra, distribution)}"
    return Listed(command, path, card, install, " ".join(trouble.split()))


def _imported(value: str) -> Any:
    """A handler's factory. What its modules print and warn of on the way is not for the user."""
    module, _, name = value.partition(":")
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attrgetter(name)(importlib.import_module(module))


def _missing(distribution: str, extra: str) -> Iterator[str]:
    """The packages of an extra that are not installed; markers other than the extra's are ignored."""
    for requirement in requirements(extra, distribution):
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name


def _plain(words: str) -> str:
    """For a screen, where Markdown has no meaning."""
    return words.replace("`", "")


def _lines_of(one: Listed, width: int) -> Iterator[str]:
    yield f"{one.name}: {one.card.summary}" if one.card and one.card.summary else one.name
    yield ""
    facts = {"class": one.path, **(dict(zip(_FACTS, map(_plain, one.said), strict=True)) if one.card else {})}
    facts["install"] = one.trouble or f"{one.install}, which is installed"
    column = 2 + max(map(len, facts))
    for name, text in facts.items():
        yield _wrapped(text, width, f"{name:<{column}}", column)
    if not one.trouble:
        search_here()
        yield from _parameters(_imported(":".join(factory_place(one.name) or ())), width)
    yield ""
    yield "example:"
    yield f"  {example_of(one)}"


def _parameters(factory: Callable[..., Any], width: int) -> Iterator[str]:
    parameters = inspect.signature(factory).parameters
    own = {name: one for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    of_model, said = parameter_of_model(factory, own), _said(factory)
    yield ""
    yield "parameters, with --handler-arg NAME=VALUE:"
    for name, one in own.items():
        option = "--model" if one is of_model else f"--{name.replace('_', '-')}" if name in NAMED else ""
        yield f"  {_with_default(one)}{f'  ({option})' if option else ''}"
        if name in said:
            yield _wrapped(said[name], width, " " * 6, 6)
    if isinstance(factory, type) and own.keys() != parameters.keys():
        yield _wrapped(", ".join(name for name in HANDLER_OPTIONS if name not in own), width, "  and: ", 6)


def _with_default(one: inspect.Parameter) -> str:
    if one.default is one.empty:
        return f"{one.name} (needed)" if one.kind is not one.VAR_POSITIONAL else f"*{one.name}"
    default = one.default
    if isinstance(default, enum.Enum):
        return f"{one.name}={default.name.lower()}"
    return f"{one.name}={getattr(default, '__name__', None) or repr(default)}"


def _said(factory: Callable[..., Any]) -> dict[str, str]:
    """What docstrings say about parameters: the factory's, and those of its bases and its siblings."""
    bases = factory.__mro__ if isinstance(factory, type) else (factory,)
    siblings = vars(inspect.getmodule(factory)).values() if isinstance(factory, type) else ()
    found: dict[str, str] = {}
    for one in (*bases, *(other for other in siblings if isinstance(other, type))):
        _, _, section = inspect.cleandoc(one.__doc__ or "").partition("\nArgs:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.split(r"\n(?=\S)", section)[0], re.MULTILINE)
        found = {name: " ".join(text.replace("``", "").split()) for name, text in entries} | found
    return found


def _wrapped(text: str, width: int, first: str, column: int) -> str:
    indent = " " * column
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
