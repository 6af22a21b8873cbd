"""How an option of a command is declared, and the panels of the help in which options stand."""

from __future__ import annotations

from typing import Any

import typer

INPUT, MODEL, OUTPUT, RUN, REPORT = "Input", "Model", "Output", "Running", "Report"


def option(name: str, panel: str, text: str, metavar: str | None = None, **limits: Any) -> Any:
    """An option's name, its panel and text in the help, and what its value is called there."""
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel=panel, **limits)
