"""The options of ``headrace run`` as words of a command line, changed by those of an alternative, and as a file."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

import typer

from headrace.cli.fallbacks import FallbacksInOrder, options_behind
from headrace.cli.option import MODELS, PATHS, command_of
from headrace.cli.options import RunArgs
from headrace.cli.retry_command import masked
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import did_you_mean

SAME_PREDICTIONS = {
    "workers",
    "placement",
    "isolate",
    "timeout",
    "min_batch_size",
    "max_batch_size",
    "length_column",
    "batch_directory",
    "cache",
    "prices",
}
"""The options that change how fast and how dear a run is, and no prediction."""
ArgsT = TypeVar("ArgsT", bound=RunArgs)

_PAIRS = ("handler_args", "inference_args", "prices")
_OF_FALLBACKS = ("fallback_model", "fallback_args")
_LEFT_OUT = (*_OF_FALLBACKS, "config")


_ABOUT_FILES = (
    *("output", "dead_letters", "output_format", "arguments", "limit", "stop_after", "dry_run", "resume", "threshold"),
    *("config", "no_progress", "as_json", "verbose", "report", "report_messages", "watch", "prometheus"),
    *("quote", "budget", "budget_tokens", "changed_since"),
)
"""The options that say nothing about how a row is predicted."""


def plain(args: RunArgs) -> RunArgs:
    """Only the options that say how rows are predicted, as if they had been typed."""
    names = (one.name for one in fields(RunArgs) if one.name not in _ABOUT_FILES)
    given = RunArgs(arguments=[], **{name: getattr(args, name) for name in names})
    return replace(parsed([*words_of(given), "INPUT"], RunArgs), arguments=args.arguments)


def words_of(args: RunArgs) -> list[str]:
    """The options of a command line that differ from their defaults, as words; without inputs."""
    return [word for name, value in _given(args) for word in ((name,) if value is True else (name, value))]


def table_of(args: RunArgs) -> dict[str, Any]:
    """The same as a table of ``headrace.toml``, without secrets."""
    table: dict[str, Any] = {}
    for name, value in _given(args):
        if value is not True and masked(value) != value:
            continue
        if name[2:] in table:
            before = table[name[2:]]
            table[name[2:]] = [*(before if isinstance(before, list) else [before]), value]
        else:
            table[name[2:]] = value
    return table


def toml_of(args: RunArgs, path: str) -> str:
    """The text of a file of options at this path, in whose folder relative paths begin.

    Raises:
        ConfigurationError: there are several fallbacks, which such a file cannot hold.
    """
    if len(args.fallback or ()) > 1:
        raise ConfigurationError("--config-out: a file holds the options of one fallback, and there are several.")
    lines = ["[run]"]
    for name, given in table_of(args).items():
        is_path = name in PATHS or (name in MODELS and os.path.exists(str(given)))
        value = _from_folder(given, os.path.dirname(path)) if is_path else given
        is_number = isinstance(value, str) and value.isdecimal() and str(int(value)) == value
        lines.append(f"{name} = {value if is_number else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _from_folder(path: str, folder: str) -> str:
    if "://" in path or path == "-":
        return path
    return os.path.relpath(path, folder or ".") + ("/" if path.endswith("/") else "")


def _given(args: RunArgs) -> Iterator[tuple[str, Any]]:
    """Names of options and their values, as text; True: a flag that is on."""
    for one in fields(args):
        info, value = one.metadata["typer"], getattr(args, one.name)
        if not info.param_decls or value == one.default or one.name in _LEFT_OUT:
            continue
        name = info.param_decls[0].partition("/")[0]
        values = value if isinstance(value, list) else [value]
        for number, single in enumerate(values, start=1):
            yield name, True if single is True else _text(single)
            if one.name == "fallback":
                yield from options_behind(args, number)


def _text(value: Any) -> str:
    if value is None:  # of --workers, the only one whose default is another
        return "auto"
    return value.value if isinstance(value, Enum) else str(value)


def parsed(words: Sequence[str], kind: type[ArgsT]) -> ArgsT:
    """The options of words behind a command, which name an input; without those of a file.

    Raises:
        ConfigurationError: they are wrong.
    """
    command: Any = _command(cast(Any, kind))
    try:
        with command.make_context("run", ["--config", os.devnull, *words]) as context:
            found: ArgsT = command.invoke(context)
            return replace(found, config=None)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's, or click's
            raise
        raise ConfigurationError(error.format_message()) from None


@cache
def _command(kind: Any) -> Any:
    app = typer.Typer()
    more = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("run", cls=FallbacksInOrder, context_settings=more)(command_of(kind))
    return typer.main.get_command(app)


def changed(base: RunArgs, alternative: str) -> RunArgs:
    """The options of a run, with those of a text in place of its own.

    Raises:
        ConfigurationError: the text is wrong; the message quotes it.
    """
    try:
        words = shlex.split(alternative)
        own = parsed([*words, "INPUT"], RunArgs)
        if strange := [word for word in own.arguments if word != "INPUT"]:
            names = [one.metadata["typer"].param_decls[0] for one in fields(own) if one.metadata["typer"].param_decls]
            raise ConfigurationError(
                f"it has options of headrace run, not {strange[0]}{did_you_mean(strange[0], names)}"
            )
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"--alternative {alternative!r}: {error}") from None
    lists = {one.name: value for one in fields(own) if isinstance(value := getattr(own, one.name), list)}
    lists.pop("arguments")
    kept: dict[str, Any] = {
        name: _others(getattr(base, name), values) for name, values in lists.items() if name in _PAIRS
    }
    if "fallback" in lists:
        kept |= dict.fromkeys(_OF_FALLBACKS)
    emptied: dict[str, Any] = {**dict.fromkeys(lists), **kept}
    rest = replace(base, **emptied)
    return replace(parsed([*words_of(rest), *words, "INPUT"], RunArgs), arguments=base.arguments, config=base.config)


def _others(pairs: Sequence[str] | None, new: Sequence[str]) -> list[str] | None:
    keys = {pair.partition("=")[0] for pair in new}
    return [pair for pair in pairs or () if pair.partition("=")[0] not in keys] or None


def differs_in_predictions(one: RunArgs, other: RunArgs) -> bool:
    """Whether the options of two runs may predict differently."""
    names = (field.name for field in fields(one))
    return any(getattr(one, name) != getattr(other, name) for name in names if name not in SAME_PREDICTIONS)
