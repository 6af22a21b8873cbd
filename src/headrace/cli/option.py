"""How a command declares its options: as fields of a dataclass, with defaults from ``headrace.toml``.

The file has options that one would repeat, in a table for each command, by their names without dashes. They are
defaults: for the rest of the program they are as if they had been typed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from enum import Enum
from functools import partial
from inspect import Parameter, Signature, cleandoc
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from headrace.core.errors import ConfigurationError
from headrace.core.spelling import did_you_mean, no_file

ArgsT = TypeVar("ArgsT")

FILE = "headrace.toml"

_COMMANDS = ("run", "retry", "doctor")
_TABLES = {"quote": "run"}
"""The tables of commands that have none of their own name."""
_PATHS = ("output", "report", "into", "dead-letters", "rows", "cache", "batch-directory", "changed-since")
_MODELS = ("model", "fallback-model")
"""A path, or an id on a hub."""
_PAIRS = ("handler-arg", "inference-arg", "fallback-arg", "price")


def option(text: str, metavar: str | None = None, *, name: str = "", default: Any = None, **more: Any) -> Any:
    """A field that is an option: its text in the help, what its value is called there, and its name.

    Without ``name`` it has that of the field: ``--max-batch-size``, and for a flag ``--resume/--no-resume``.
    """
    info = typer.Option(default, *filter(None, [name]), help=text, metavar=metavar, **more)
    return field(default=default, metadata={"typer": info})


input_option, model_option, output_option, run_option, report_option = (
    partial(option, rich_help_panel=panel) for panel in ("Input", "Model", "Output", "Running", "Report")
)
"""The same in the panels of the help."""


def argument(metavar: str, text: str, *, is_needed: bool = True, **more: Any) -> Any:
    """A field that is a positional argument."""
    info = typer.Argument(... if is_needed else None, metavar=metavar, help=text, **more)
    return field(default=MISSING if is_needed else None, metadata={"typer": info})


def command_of(args: type[ArgsT]) -> Callable[..., ArgsT]:
    """A function that typer takes for a command; it returns the options, whose docstring is the command's help."""

    def command(**values: Any) -> ArgsT:
        return args(**{name: value.value if isinstance(value, Enum) else value for name, value in values.items()})

    command.__doc__ = "\n\n".join(" ".join(one.split()) for one in cleandoc(args.__doc__ or "").split("\n\n"))
    hints = get_type_hints(args)
    parameters = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.metadata["typer"], annotation=_known(hints[one.name]))
        for one in fields(args)  # type: ignore[arg-type]
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def _known(hint: Any) -> Any:
    """The hint, with an Enum in place of a Literal, which older versions of typer do not know."""
    literal = next((one for one in get_args(hint) if get_origin(one) is Literal), None)
    choices: Any = {choice: choice for choice in get_args(literal)}
    return Enum("Choice", choices) if choices else hint


def names_of(one: Field[Any]) -> list[str]:
    """The names of an option, of a flag also that which turns it off; none of an argument."""
    info = one.metadata["typer"]
    if not isinstance(info, OptionInfo):
        return []
    if info.param_decls:
        return info.param_decls[0].split("/")
    name = one.name.replace("_", "-")
    return [f"--{name}", *([f"--no-{name}"] if info.default is False else [])]


def option_names(args: type) -> list[str]:
    """The options of a command."""
    return [name for one in fields(args) for name in names_of(one)]


def share(text: str) -> float:
    """A share of the rows, given as ``0.01`` or ``1%``."""
    given = str(text).strip()
    value = given.removesuffix("%")
    try:
        return float(value) / 100 if value != given else float(value)
    except ValueError:
        raise ValueError(f"{text!r} is no share of the rows; give 0.01 or 1%.") from None


def count(text: str) -> int | None:
    """A number, given as ``4``; None for ``auto``."""
    try:
        return None if text == "auto" else int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number of processes; give 4, or auto.") from None


def use_settings(context: typer.Context, config: str | None) -> str | None:
    """Takes a command's options from a file, where the command line does not give them; for ``typer`` to call.

    Without ``config`` the file is ``headrace.toml`` of the current folder. Returns the file, if there is one.
    """
    path = config or (FILE if os.path.isfile(FILE) else None)
    if path is None or context.resilient_parsing:
        return path
    tables = read_toml(path)
    for name, table in tables.items():
        _refuse_stray(path, name, table)
    name = str(context.info_name)
    context.default_map = _defaults(context, path, tables.get(_TABLES.get(name, name), {}))
    return path


def in_place_of_output(context: typer.Context, into: str | None) -> str | None:
    """Lets ``--into`` win over an ``output`` of the file; for ``typer`` to call."""
    if into is not None and context.default_map:
        context.default_map.pop("output", None)
    return into


def _refuse_stray(path: str, name: str, table: Any) -> None:
    tables = ", ".join(f"[{command}]" for command in _COMMANDS)
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: {name!r} stands in no table; put options under {tables}.")
    if name not in _COMMANDS:
        raise ConfigurationError(f"{path}: there is no table [{name}]; there are {tables}.")


def read_toml(path: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigurationError: there is no such file, or it is no TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - only where there is a file
    else:
        import tomli as tomllib  # noqa: PLC0415 - as above
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigurationError(no_file(path)) from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from None


def _defaults(context: typer.Context, path: str, table: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {
        option.lstrip("-"): parameter
        for parameter in context.command.params
        for option in parameter.opts
        if option.startswith("--") and option not in ("--config", "--help")
    }
    defaults: dict[str, Any] = {}
    for name, value in table.items():
        if name not in parameters:
            end = did_you_mean(name.replace("_", "-"), parameters)
            raise ConfigurationError(f"{path}: [{context.info_name}] has no option {name!r}{end}")
        parameter = parameters[name]
        try:
            given = _given(name, value, os.path.dirname(path), parameter)
            parameter.process_value(context, given)  # raises if the option does not take it
        except Exception as error:
            message = str(getattr(error, "message", None) or error).removeprefix("Value error, ")
            raise ConfigurationError(f"{path}: [{context.info_name}] {name}: {message}") from None
        defaults[str(parameter.name)] = given
    return defaults


def _given(name: str, value: Any, folder: str, parameter: Any) -> Any:
    """A value as the command line would give it."""
    is_flag, takes_many = (bool(getattr(parameter, kind, False)) for kind in ("is_flag", "multiple"))
    if is_flag is not isinstance(value, bool):
        raise ValueError(f"it is true or false, not {value!r}." if is_flag else f"it takes a value, not {value!r}.")
    if isinstance(value, dict) and name in _PAIRS:
        return [f"{key}={json.dumps(one)}" for key, one in value.items()]
    if isinstance(value, dict) and name == "types":
        return [f"{column}={kind}" for column, kind in value.items()]
    values = value if isinstance(value, list) and takes_many else [value]
    if any(isinstance(one, dict | list) for one in values):
        raise ValueError(f"it takes one value{', or a list of values' if takes_many else ''}, not {value!r}.")
    if is_flag:
        return value
    pairs = [(str(one), os.path.join(folder, str(one))) for one in values]
    texts = [path if folder and is_path(name, text, path) else text for text, path in pairs]
    return texts if takes_many else texts[0]


def is_path(name: str, value: str, path: str) -> bool:
    """Whether the value of an option names a local file, which would be at this path."""
    return (name in _PATHS or (name in _MODELS and os.path.exists(path))) and "://" not in value and value != "-"
