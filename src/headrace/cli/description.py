"""``headrace handlers NAME``: what one handler takes, its parameters, and an example command."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from rich.console import Console

from headrace.cli.catalogue import NAMES, Listed, plain
from headrace.cli.handlers import factory_place, parameter_of_model
from headrace.cli.objects import constructors, search_here
from headrace.cli.options import NAMED

_WIDEST = 100
_NO_BREAK = "\0"
_OF_ALL = "headrace.core."
"""Modules of the classes whose parameters many handlers take."""


def show_description(console: Console, one: Listed) -> None:
    """Prints it; the parameters only if what the handler needs is installed."""
    for line in _lines(one, min(console.width, _WIDEST) if console.is_terminal else _WIDEST):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(one: Listed, width: int) -> Iterator[str]:
    yield f"{one.name}: {one.card.summary}" if one.card and one.card.summary else one.name
    yield ""
    facts = {"class": one.path, **(dict(zip(NAMES, plain(one.card), strict=True)) if one.card else {})}
    facts["install"] = one.trouble or f"{one.install}, which is installed"
    column = 2 + max(map(len, facts))
    for name, text in facts.items():
        yield _wrapped(text, width, f"{name:<{column}}", column)
    factory = None if one.trouble else _imported(one.name)
    if factory is not None:
        yield from _parameters(factory, width)
    yield ""
    yield "example:"
    yield _in_lines(example_of(one), width)


def _imported(name: str) -> Callable[..., Any] | None:
    search_here()
    module, attribute = factory_place(name) or ("", "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return attrgetter(attribute)(importlib.import_module(module))  # type: ignore[no-any-return]
        except Exception:  # the list says what it needs
            return None


def _parameters(factory: Callable[..., Any], width: int) -> Iterator[str]:
    own = {name: one for name, one in inspect.signature(factory).parameters.items() if one.kind is not one.VAR_KEYWORD}
    of_model, said = parameter_of_model(factory, own), _said(factory)
    yield ""
    yield "parameters, with --handler-arg NAME=VALUE:"
    for name, one in own.items():
        option = "--model" if one is of_model else f"--{name.replace('_', '-')}" if name in NAMED else ""
        yield f"  {_with_default(one)}{f'  ({option})' if option else ''}"
        if name in said:
            yield _wrapped(said[name], width, " " * 6, 6)
    others = {name: one for name, one in _of_bases(factory).items() if name not in own}
    if others:
        yield _wrapped(", ".join(map(_with_default, others.values())), width, "  and: ", 6)


def _of_bases(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a handler passes on to the classes that many handlers are derived from."""
    found: dict[str, inspect.Parameter] = {}
    for function in constructors(factory):
        parameters = inspect.signature(function).parameters
        if isinstance(factory, type) and function.__module__.startswith(_OF_ALL):
            found |= {
                name: one for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY and name not in found
            }
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            break
    return found


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
        found = _arguments_in(inspect.cleandoc(one.__doc__ or "")) | found
    return found


def _arguments_in(docstring: str) -> dict[str, str]:
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()) for name, text in entries}


def example_of(one: Listed) -> str:
    """A command that runs it."""
    given = one.card.command if one.card else ""
    source, _, rest = (given or "rows.csv").partition(" ")
    words = ["headrace run", source, "--handler", one.name, rest, "--output predictions.jsonl"]
    return " ".join(word for word in words if word)


def _in_lines(command: str, width: int) -> str:
    """A command in lines that a shell joins; an option and its value stay together."""
    parts = " --".join(part.replace(" ", _NO_BREAK) for part in command.split(" --"))
    return _wrapped(parts, width - 2, "  ", 6).replace("\n", " \\\n").replace(_NO_BREAK, " ")


def _wrapped(text: str, width: int, first: str, column: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * column,
        break_long_words=False,
        break_on_hyphens=False,
    )
