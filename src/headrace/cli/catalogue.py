"""What handlers there are, read without importing them: a framework takes seconds to import, and may not be there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.core.card import HandlerCard
from headrace.core.errors import as_type_name

GROUP = "headrace.handlers"
OURS = f"{GROUP}."

_UNSAID = "-"
_WIDE = 120
"""Characters for which all columns have room."""
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
    """A handler that an installed package names."""

    name: str
    """On the command line, if it can be fed there."""
    path: str
    """``package.module.Class``."""
    card: HandlerCard | None
    """None: it has none."""
    install: str
    """Of ``pip install``: the package, with its extra."""
    trouble: str = ""
    """Why it cannot be used as it is."""


def listed_handlers() -> list[Listed]:
    """The handlers of all installed packages, Headrace's own first, in the order of their modules and names."""
    entries = metadata.entry_points(group=GROUP)
    named = {entry.value: _listed(entry.name, entry.value, _package(entry)) for entry in entries}
    others = {
        value: _listed(_UNSAID, value, _package(entry))
        for entry in entries
        if entry.value.startswith(OURS)  # what others list is their affair
        for value in _with_card_beside(entry.value)
    }
    found = (others | named).values()
    return sorted(found, key=lambda one: (not one.path.startswith(OURS), one.path.rpartition(".")[0], one.name))


def as_markdown(handlers: Iterable[Listed]) -> str:
    """The table of the documentation."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_markdown_row, handlers)]
    return "\n".join(f"| {' | '.join(row)} |".replace("| --- ", "|---").replace("--- |", "---|") for row in rows)


def show_handlers(console: Console, handlers: Iterable[Listed]) -> None:
    """Prints the table for people; a narrow terminal gets the columns for which it has room."""
    wide = console.width >= _WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("name", *(_COLUMNS[2:6] if wide else _COLUMNS[2:4]), "install"):
        table.add_column(title.replace("`", ""), overflow="fold", no_wrap=title == "name")
    for one in handlers:
        said = [word.replace("`", "") for word in _said(one.card)]
        row = [one.name, *(said if wide else said[:2]), one.trouble or "installed"]
        table.add_row(*map(escape, row), style="dim" if one.trouble else None)
    console.print(table)


def card_in_source(source: str, name: str) -> HandlerCard | None:
    """The card that a class of a module has: its own ``card = HandlerCard(...)``, or that of a base in the module.

    Args:
        source: the module's.
        name: of the class, at the top of the module.

    Returns:
        None if the source does not say it in strings, or in names that the module gives to strings.
    """
    body = ast.parse(source).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    strings = {target: value for target, value in _assigned(body) if isinstance(value, ast.Constant)}
    for node in _with_bases(name, classes):
        for target, value in _assigned(node.body):
            if target == "card":
                return _card(value, strings)
    return None


def _package(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value.partition(".")[0]


def _with_card_beside(value: str) -> Iterator[str]:
    """The public classes with a card of their own in the module of a handler, as entry points name them."""
    module = value.partition(":")[0]
    with suppress(ImportError, OSError, SyntaxError, ValueError):
        for node in ast.parse(_source(module)).body:
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and "card" in dict(_assigned(node.body))
            ):
                yield f"{module}:{node.name}"


def _listed(command: str, value: str, distribution: str) -> Listed:
    module, _, name = value.partition(":")
    card, trouble = None, ""
    with suppress(ImportError, OSError, SyntaxError, ValueError):  # what is wrong is said by the import, below
        card = card_in_source(_source(module), name)
    if card is None:
        card, trouble = _imported_card(module, name)
    extra = card.extra if card else ""
    install = f"{distribution}[{extra}]" if extra else distribution
    if extra and (missing := _missing(distribution, extra)):
        trouble = f"not installed ({', '.join(missing)}): pip install '{install}'"
    return Listed(command, f"{module}.{name}", card, install, trouble)


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(module)
    return Path(spec.origin).read_text(encoding="utf-8")


def _imported_card(module: str, name: str) -> tuple[HandlerCard | None, str]:
    """The card of a class whose source does not show it, and what is wrong with the class."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        return None, f"{as_type_name(error)}: {error}"
    card = getattr(found, "card", None)
    return (card if isinstance(card, HandlerCard) else None), ""


def _missing(distribution: str, extra: str) -> list[str]:
    """The packages of an extra that are not installed; of markers only the extra's is looked at."""
    requirements = [
        one for one in metadata.requires(distribution) or () if re.search(rf"extra == ['\"]{extra}['\"]", one)
    ]
    names = [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in requirements]
    return [name for name in names if not _is_installed(name)]


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _with_bases(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """A class, and those classes of its module from which it is derived."""
    node = classes.get(name)
    if node is None:
        return
    yield node
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name):
            yield from _with_bases(plain.id, classes)


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names to which a body of statements assigns a value, with the value."""
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _card(value: ast.expr, strings: dict[str, ast.Constant]) -> HandlerCard | None:
    """The card that ``HandlerCard(...)`` makes, if its arguments are plain."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func).rpartition(".")[2] != HandlerCard.__name__:
        return None
    given = dict(zip(HandlerCard._fields, value.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}
    args = {name: word for name, node in given.items() if (word := _string(node, strings)) is not None}
    return HandlerCard(**args) if set(args) == set(HandlerCard._fields) else None


def _string(node: ast.expr, strings: dict[str, ast.Constant]) -> str | None:
    found = strings.get(node.id) if isinstance(node, ast.Name) else node
    return found.value if isinstance(found, ast.Constant) and isinstance(found.value, str) else None


def _markdown_row(one: Listed) -> tuple[str, ...]:
    name = one.name if one.name == _UNSAID else f"`{one.name}`"
    return f"`{one.path.removeprefix(OURS)}`", name, *_said(one.card), f"`{one.install}`"


def _said(card: HandlerCard | None) -> tuple[str, ...]:
    return tuple(word.replace("|", r"\|") or _UNSAID for word in card[:4]) if card else (_UNSAID,) * 4
