"""How options of a command are declared: as the fields of a dataclass, which becomes a command of typer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from enum import Enum
from inspect import Parameter, Signature
from typing import Any, TypeVar, get_type_hints

import typer

ArgsT = TypeVar("ArgsT")

INPUT, MODEL, OUTPUT, RUN, REPORT = "Input", "Model", "Output", "Running", "Report"
"""The panels of the help."""


class PlacementName(str, Enum):
    """Where a model can live."""

    process = "process"
    machine = "machine"
    auto = "auto"


class FileFormat(str, Enum):
    """What files of rows can be; of ``files`` each is a row."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"
    files = "files"


class OutputFormat(str, Enum):
    """What can go to standard output, or into a folder."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


def option(
    name: str, panel: str | None, text: str, metavar: str | None = None, *, default: Any = None, **more: Any
) -> Any:
    """A field that is an option: its name, its panel and text in the help, and what its value is called there."""
    info = typer.Option(default, name, help=text, metavar=metavar, rich_help_panel=panel, **more)
    return field(default=default, metadata={"typer": info})


def argument(metavar: str, text: str, *, is_needed: bool = True, **more: Any) -> Any:
    """A field that is a positional argument."""
    info = typer.Argument(... if is_needed else None, metavar=metavar, help=text, **more)
    return field(default=MISSING if is_needed else None, metadata={"typer": info})


def command_of(args: type[ArgsT]) -> Callable[..., ArgsT]:
    """A function that typer takes for a command; it returns the options."""

    def command(**values: Any) -> ArgsT:
        return args(**values)

    hints = get_type_hints(args)
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.metadata["typer"], annotation=hints[one.name])
            for one in fields(args)  # type: ignore[arg-type]
        ]
    )
    return command


def option_names(args: type) -> list[str]:
    """The options of a command."""
    names = (name for one in fields(args) for name in one.metadata["typer"].param_decls or ())
    return [name for both in names for name in both.split("/")]


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
