"""The options of a run as words of a command line, as a file, and changed by those of an alternative.

``--fallback`` may be repeated, and the options behind it are those of that fallback.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand

from headrace.cli.handlers import make_handler, parse_arguments
from headrace.cli.option import command_of, is_path, names_of, option_names
from headrace.cli.options import RetryArgs, RunArgs
from headrace.core.errors import ConfigurationError
from headrace.core.secrets import MASK
from headrace.core.spelling import did_you_mean

WITH_OPTIONS_OF_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For the commands that hand others on to Beam."""
_FALLBACK, _FALLBACK_MODEL, _FALLBACK_ARG = "--fallback", "--fallback-model", "--fallback-arg"
_BEHIND = "\0"
"""Stands between the number of a fallback and a value; no word of a command line contains it."""
_SAME_PREDICTIONS = {
    *("workers", "placement", "isolate", "timeout", "min_batch_size", "max_batch_size", "length_column"),
    *("batch_directory", "cache", "prices"),
}
"""The options that change how fast and how dear a run is, and no prediction."""
_OF_ONE_RUN = {
    *("output", "dead_letters", "output_format", "arguments", "limit", "stop_after", "dry_run", "resume", "threshold"),
    *("config", "no_progress", "as_json", "verbose", "report", "report_messages", "watch", "prometheus"),
    *("quote", "budget", "budget_tokens", "changed_since"),
}
"""The options that say nothing about how a row is predicted."""
_NOT_OF_RETRY = (_OF_ONE_RUN - {"budget", "budget_tokens"}) | {"into", "cause", "runner"}
_PAIRS = ("handler_args", "inference_args", "prices")
_OF_FALLBACKS = ("fallback_model", "fallback_args")
_SECRET = re.compile(
    r"^(--[\w-]+=)?([^=]*(api_?key|(access|auth|bearer|hf)_?(key|token)|password|secret|credential)[^=]*|token)="
    r"|authorization['\"]?\s*[:=]|://[^/@\s]*@",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """A word of a command line, without a secret."""
    key = text.partition("=")[0]
    return (f"{key}={MASK}" if key.isidentifier() else MASK) if _SECRET.search(text) else text


def retry_options(args: RunArgs | RetryArgs) -> str:
    """The options of a run with which its dead letters are retried, but for secrets, as a command line has them."""
    words = list(map(masked, _words(_given(args, RetryArgs, _NOT_OF_RETRY))))
    has_limit = args.budget is not None or args.budget_tokens is not None  # which needs one of the two
    return shlex.join([*words, "--resume"] if has_limit and args.cache is None else words)


def plain(args: RunArgs) -> RunArgs:
    """Only the options that say how rows are predicted, as if they had been typed."""
    names = (one.name for one in fields(RunArgs) if one.name not in _OF_ONE_RUN)
    given = RunArgs(arguments=[], **{name: getattr(args, name) for name in names})
    return replace(parsed([*words_of(given), "INPUT"]), arguments=args.arguments)


def words_of(args: RunArgs) -> list[str]:
    """The options of a command line that differ from their defaults, as words; without inputs."""
    return list(_words(_given(args, type(args), ("config",))))


def table_of(args: RunArgs) -> dict[str, Any]:
    """The same as a table of ``headrace.toml``, without secrets."""
    table: dict[str, list[Any]] = {}
    for name, value in _given(args, type(args), ("config",)):
        if value is True or masked(value) == value:
            table.setdefault(name[2:], []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in table.items()}


def toml_of(args: RunArgs, path: str) -> str:
    """The text of a file of options at this path, in whose folder relative paths begin.

    Raises:
        ConfigurationError: there are several fallbacks, which such a file cannot hold.
    """
    if len(args.fallback or ()) > 1:
        raise ConfigurationError("--config-out: a file holds the options of one fallback, and there are several.")
    lines = ["[run]"]
    for name, given in table_of(args).items():
        value = given
        if is_path(name, str(given), str(given)):
            value = os.path.relpath(given, os.path.dirname(path) or ".") + ("/" if given.endswith("/") else "")
        is_number = isinstance(value, str) and value.isdecimal() and str(int(value)) == value
        lines.append(f"{name} = {value if is_number else json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _words(given: Iterator[tuple[str, Any]]) -> Iterator[str]:
    for name, value in given:
        yield from (name,) if value is True else (name, value)


def _given(args: RunArgs | RetryArgs, kind: type, but: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The options of a command that are given: their names and their values, as text; True: a flag that is on."""
    for one in fields(kind):
        name, value = next(iter(names_of(one)), None), getattr(args, one.name, one.default)
        if name is None or value == one.default or one.name in (*but, *_OF_FALLBACKS):
            continue
        for number, single in enumerate(value if isinstance(value, list) else [value], start=1):
            # None: of --workers, the only one whose default is another
            yield name, True if single is True else "auto" if single is None else str(single)
            if one.name == "fallback":
                yield from options_behind(args, number)


def parsed(words: Sequence[str]) -> RunArgs:
    """The options of words behind ``headrace run``, which name an input; without those of a file.

    Raises:
        ConfigurationError: they are wrong.
    """
    try:
        with _command().make_context("run", ["--config", os.devnull, *words]) as context:
            found: RunArgs = _command().invoke(context)
            return replace(found, config=None)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's, or click's
            raise
        raise ConfigurationError(error.format_message()) from None


@cache
def _command() -> Any:
    app = typer.Typer()
    app.command("run", cls=FallbacksInOrder, context_settings=WITH_OPTIONS_OF_BEAM)(command_of(RunArgs))
    return typer.main.get_command(app)


def changed(base: RunArgs, alternative: str) -> RunArgs:
    """The options of a run, with those of a text in place of its own.

    Raises:
        ConfigurationError: the text is wrong; the message quotes it.
    """
    try:
        words = shlex.split(alternative)
        own = parsed([*words, "INPUT"])
        if strange := [word for word in own.arguments if word != "INPUT"]:
            raise ConfigurationError(
                f"it has options of headrace run, not {strange[0]}{did_you_mean(strange[0], option_names(RunArgs))}"
            )
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"--alternative {alternative!r}: {error}") from None
    lists = {one.name: value for one in fields(own) if isinstance(value := getattr(own, one.name), list)}
    lists.pop("arguments")
    kept: dict[str, Any] = dict.fromkeys(lists)
    for name in lists.keys() & set(_PAIRS):
        keys = {pair.partition("=")[0] for pair in lists[name]}
        kept[name] = [pair for pair in getattr(base, name) or () if pair.partition("=")[0] not in keys] or None
    if "fallback" in lists:
        kept |= dict.fromkeys(_OF_FALLBACKS)
    rest = replace(base, **kept)
    return replace(parsed([*words_of(rest), *words, "INPUT"]), arguments=base.arguments, config=base.config)


def differs_in_predictions(one: RunArgs, other: RunArgs) -> bool:
    """Whether the options of two runs may predict differently."""
    names = (field.name for field in fields(one))
    return any(getattr(one, name) != getattr(other, name) for name in names if name not in _SAME_PREDICTIONS)


class FallbacksInOrder(TyperCommand):
    """A command that knows behind which ``--fallback`` an option stands; by itself typer tells only their order."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words after the command's name."""
        return super().parse_args(ctx, numbered(args))


def numbered(words: Sequence[str]) -> list[str]:
    """The words of a command line; each value of a fallback's option has the number of its fallback before it."""
    found, number, rest = [], 0, iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        number += option == _FALLBACK
        if option in (_FALLBACK_MODEL, _FALLBACK_ARG):
            given = value if equals else next(rest, None)
            found.append(option if given is None else f"{option}={number}{_BEHIND}{given}")
        else:
            found.append(word)
    return found


class GivenFallback(NamedTuple):
    """A fallback, as a command line describes it."""

    name: str
    model: str | None
    arguments: dict[str, Any]


def given_fallbacks(args: RunArgs | RetryArgs) -> list[GivenFallback]:
    """The fallbacks of a command line, in order; raises ConfigurationError if an option may be of any of them."""
    names = args.fallback or []
    if not names and (args.fallback_model or args.fallback_args):
        raise ConfigurationError(f"{_FALLBACK_MODEL} and {_FALLBACK_ARG} go with {_FALLBACK}, which names the handler.")
    models = _by_number(_FALLBACK_MODEL, args.fallback_model, len(names))
    pairs = _by_number(_FALLBACK_ARG, args.fallback_args, len(names))
    return [
        GivenFallback(name, model[-1] if model else None, parse_arguments(_FALLBACK_ARG, own))
        for name, model, own in zip(names, models, pairs, strict=True)
    ]


def make_fallbacks(args: RunArgs | RetryArgs) -> Any:
    """The handlers of the fallbacks; None without one."""
    given = given_fallbacks(args)
    return [_made(one, len(given)) for one in given] or None


def options_behind(args: RunArgs | RetryArgs, number: int) -> Iterator[tuple[str, str]]:
    """The options of one of the fallbacks, counted from 1; those of a lone one may stand anywhere."""
    is_alone = len(args.fallback or ()) == 1
    for option, values in ((_FALLBACK_MODEL, args.fallback_model), (_FALLBACK_ARG, args.fallback_args)):
        for value in values or ():
            behind, _, own = value.rpartition(_BEHIND)
            if is_alone or behind in ("", str(number)):
                yield option, own


def _by_number(option: str, values: Sequence[str] | None, count: int) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in range(count)]
    for value in values or ():
        number, _, own = value.rpartition(_BEHIND)
        if count > 1 and number in ("", "0"):
            raise ConfigurationError(
                f"{option} {own}: there are {count} fallbacks; on the command line, put {option} behind the "
                f"{_FALLBACK} that it is for."
            )
        found[int(number) - 1 if count > 1 else 0].append(own)
    return found


def _made(given: GivenFallback, count: int) -> Any:
    try:
        return make_handler(given.name, given.arguments, given.model)
    except ConfigurationError as error:
        said = str(error).replace("--handler-arg", _FALLBACK_ARG).replace("--handler ", f"{_FALLBACK} ")
        which = f"{_FALLBACK} {given.name}" if count > 1 else _FALLBACK
        raise type(error)(f"{which}: {said.replace('--model', _FALLBACK_MODEL)}") from error
