"""How an option of a command is declared, the panels of the help in which options stand, and a command's options."""

from __future__ import annotations

from typing import Any, get_type_hints

import typer

INPUT, MODEL, OUTPUT, RUN, REPORT = "Input", "Model", "Output", "Running", "Report"


def share(text: str) -> float:
    """A share of the rows, given as ``0.01`` or ``1%``.

    Raises:
        ValueError: it is neither.
    """
    given = str(text).strip()
    value = given.removesuffix("%")
    try:
        return float(value) / 100 if value != given else float(value)
    except ValueError:
        raise ValueError(f"{text!r} is no share of the rows; give 0.01 or 1%.") from None


def count(text: str) -> int | None:
    """A number, given as ``4``; None for ``auto``.

    Raises:
        ValueError: it is neither.
    """
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number of processes; give 4, or auto.") from None


def option(name: str, panel: str, text: str, metavar: str | None = None, **limits: Any) -> Any:
    """An option's name, its panel and text in the help, and what its value is called there."""
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel=panel, **limits)


def option_names(command: type) -> list[str]:
    """The options of a command, by the dataclass of them."""
    found = [
        str(given.default if isinstance(given.default, str) else given.param_decls)
        for hint in get_type_hints(command, include_extras=True).values()
        for given in getattr(hint, "__metadata__", ())
    ]
    return [name for names in found for name in names.split("/") if name.startswith("--")]
