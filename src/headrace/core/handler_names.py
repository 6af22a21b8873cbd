"""The names of installed handlers, and where what makes them is."""

from __future__ import annotations

import importlib.metadata

from headrace.core.spelling import did_you_mean

GROUP = "headrace.handlers"
"""The entry points that are handlers."""


def handler_names() -> list[str]:
    """The names of the installed handlers."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)})


def factory_place(name: str) -> tuple[str, str] | None:
    """The module and the name in it of the factory that a name stands for; None if there is no such handler."""
    entries = [entry.value for entry in importlib.metadata.entry_points(group=GROUP) if entry.name == name]
    module, colon, attribute = (entries[0] if entries and ":" not in name else name).partition(":")
    return (module, attribute) if colon else None


def no_handler(name: str) -> str:
    """That there is no handler of a name, and how to find one."""
    module, dot, factory = name.rpartition(".")
    own = f"{module}:{factory}" if dot and factory != "py" else "package.module:factory"
    return (
        f"there is no handler {name!r}{did_you_mean(name, handler_names())} `headrace handlers` lists them all; write "
        f"one of your own as {own}."
    )
