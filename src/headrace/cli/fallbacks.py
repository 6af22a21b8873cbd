"""``--fallback``, which may be repeated, and the options behind it, which are those of that fallback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from typer.core import TyperCommand

from headrace.cli.handlers import make_handler, parse_arguments
from headrace.core.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.cli.options import RetryArgs, RunArgs

WITH_OPTIONS_OF_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For the commands that hand others on to Beam."""
_NAME, _MODEL, _ARGUMENT = "--fallback", "--fallback-model", "--fallback-arg"
_BEHIND = "\0"
"""Stands between the number of a fallback and a value; no word of a command line contains it."""


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
        number += option == _NAME
        if option in (_MODEL, _ARGUMENT):
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
        raise ConfigurationError(f"{_MODEL} and {_ARGUMENT} go with {_NAME}, which names the handler.")
    models = _by_number(_MODEL, args.fallback_model, len(names))
    pairs = _by_number(_ARGUMENT, args.fallback_args, len(names))
    return [
        GivenFallback(name, model[-1] if model else None, parse_arguments(_ARGUMENT, own))
        for name, model, own in zip(names, models, pairs, strict=True)
    ]


def make_fallbacks(args: RunArgs | RetryArgs) -> Any:
    """The handlers of the fallbacks; None without one."""
    given = given_fallbacks(args)
    return [_made(one, len(given)) for one in given] or None


def options_behind(args: RunArgs | RetryArgs, number: int) -> Iterator[tuple[str, str]]:
    """The options of one of the fallbacks, counted from 1; those of a lone one may stand anywhere."""
    is_alone = len(args.fallback or ()) == 1
    for option, values in ((_MODEL, args.fallback_model), (_ARGUMENT, args.fallback_args)):
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
                f"{option} {own}: there are {count} fallbacks; on the command line, put {option} behind the {_NAME} "
                "that it is for."
            )
        found[int(number) - 1 if count > 1 else 0].append(own)
    return found


def _made(given: GivenFallback, count: int) -> Any:
    try:
        return make_handler(given.name, given.arguments, given.model)
    except ConfigurationError as error:
        said = str(error).replace("--handler-arg", _ARGUMENT).replace("--handler ", f"{_NAME} ")
        which = f"{_NAME} {given.name}" if count > 1 else _NAME
        raise type(error)(f"{which}: {said.replace('--model', _MODEL)}") from error
