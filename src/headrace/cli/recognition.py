"""Which handler runs a model, if the command line names none; and which columns of the input the model wants."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.cli.columns import listed, why_unexpected
from headrace.cli.handlers import make_handler, parse_arguments
from headrace.cli.options import NAMED
from headrace.core.errors import ConfigurationError
from headrace.core.model_files import KnownModel, ModelFile, recognise
from headrace.core.spelling import did_you_mean, no_file

if TYPE_CHECKING:
    from headrace.cli.options import ModelArgs
    from headrace.jobs.reading import InputSchema

ArgsT = TypeVar("ArgsT", bound="ModelArgs")

_NAME_IT = "name its handler with --handler: `headrace handlers` lists them, and your own is package.module:factory."
_MISSING = (
    "Missing option '--model': name the model's file, or with --handler one that `headrace handlers` lists, or your "
    "own as package.module:factory."
)


@dataclass(frozen=True)
class Recognised:
    """A model of a command line, as its file tells."""

    model: KnownModel
    is_named: bool
    """Whether the command line named the handler."""

    def columns(self, head: InputSchema) -> tuple[str, ...] | None:
        """The columns of the input that the model wants; None: all. ConfigurationError: it is not clear which."""
        known, columns = self.model, head.columns
        if known.columns is not None:
            wanted = known.columns_of(columns)
            self._refuse_lack(wanted, (*columns, *head.content))
            return wanted
        texts = [name for name in columns if head.types.get(name) == "str"]
        if known.takes == "rows" or len(columns) < 2:
            return None
        if self.is_named:
            return (texts[0],) if known.takes == "text" and len(texts) == 1 else None
        if head.content:
            raise ConfigurationError(
                f"the model, {known.what}, needs more of a file than {listed(columns)}: add --columns content, or "
                "--decode MODULE:FUNCTION, which makes an example of its bytes (of text codecs:decode)."
            )
        if known.takes == "text":
            return self._only(texts if head.types else columns, "one text of a row", columns)
        if not texts and known.width in (None, len(columns)):
            return None
        lists = [name for name in columns if "list" in head.types.get(name, "")]
        return self._only(lists, "numbers" if known.width is None else f"{known.width:,} numbers", columns)

    def refuse_few(self, chosen: Sequence[str]) -> None:
        """Raises ConfigurationError if columns that were chosen lack one that the model wants."""
        missing = [name for name in self.model.columns_of(chosen) if name not in chosen]
        if missing:
            more = f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
            raise ConfigurationError(
                f"--columns: the model, {self.model.what}, wants {missing[0]!r}{more}, too; without --columns it gets "
                f"{listed(self.model.columns or ())}."
            )

    def line(self, args: ModelArgs, columns: Sequence[str] | None) -> str:
        """What was decided, as options; empty if nothing was."""
        if self.is_named and (args.columns is not None or columns is None):
            return ""
        names = "" if args.columns is not None or columns is None else f" --columns {listed(columns, ',')}"
        return f"{args.model} is {self.model.what}: --handler {args.handler}{names}"

    def _refuse_lack(self, wanted: Sequence[str], columns: Sequence[str]) -> None:
        missing = [name for name in wanted if name not in columns] if columns else []
        if missing:
            more = f" (and {len(missing) - 1:,} more that the input lacks)" if len(missing) > 1 else ""
            raise ConfigurationError(
                f"the model, {self.model.what}, wants a column {missing[0]!r}{more}, and the input has none"
                f"{did_you_mean(missing[0], columns)} Its columns are {listed(columns)}.{why_unexpected(columns)}"
            )

    def _only(self, found: Sequence[str], what: str, columns: Sequence[str]) -> tuple[str, ...]:
        if len(found) != 1:
            raise ConfigurationError(
                f"the model, {self.model.what}, takes {what} and knows no names of columns; name what it takes with "
                f"--columns, of {listed(columns)}.{why_unexpected(columns)}"
            )
        return (found[0],)


def recognised(args: ArgsT) -> tuple[ArgsT, Recognised | None]:
    """The options with the handler of the model's file, if they name none; and what is known of the model.

    With a handler the file is read as well, if it is local: the handler that it would have been given gets the same
    columns.
    """
    if args.handler is not None:
        named = None if args.model is None or ":" in args.handler else _judged(args.model)
        return args, Recognised(named, is_named=True) if named and named.handler == args.handler else None
    if args.model is None:
        raise ConfigurationError(_MISSING)
    known = _known(args.model)
    given = [pair.partition("=")[0] for pair in args.handler_args or ()]
    found = [f"{name}={json.dumps(value)}" for name, value in known.arguments.items() if name not in given]
    args = replace(args, handler=known.handler, handler_args=[*(args.handler_args or ()), *found])
    return args, Recognised(known, is_named=False)


def handler_of(args: ModelArgs, known: Recognised | None) -> Any:
    """The handler that the options name, or that was found."""
    has_named = hasattr(args, NAMED[0])  # not doctor
    named = {name: value for name in NAMED if (value := getattr(args, name)) is not None} if has_named else None
    arguments = parse_arguments("--handler-arg", args.handler_args)
    parameter = known.model.path_parameter if known else None
    return make_handler(args.handler or "", arguments, args.model, named, parameter)


def about_model(handler: str, model: str) -> str:
    """The end of a sentence about a model's file that a handler cannot load: whose it is, if that is known."""
    known = _judged(model)
    return f"; the file is {known.what}: --handler {known.handler}" if known and known.handler != handler else ""


def _known(path: str) -> KnownModel:
    if "://" not in path and not _is_regular(path):
        if os.path.exists(path):
            raise ConfigurationError(f"--model: {path} can be read only once; {_NAME_IT}")
        raise ConfigurationError(f"--model: {no_file(path)} If it is an id on a hub or at an endpoint, {_NAME_IT}")
    try:
        known = recognise(ModelFile(path))
    except ConfigurationError as error:
        raise ConfigurationError(f"--model {path}: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"--model {path} cannot be read: {error}") from error
    if known is None:
        raise ConfigurationError(f"--model {path}: it is not clear what kind of model this is; {_NAME_IT}")
    return known


def _judged(path: str) -> KnownModel | None:
    """What is known of a local model; None for files that cannot be judged."""
    with suppress(ConfigurationError, OSError):
        return recognise(ModelFile(path)) if _is_regular(path) else None
    return None


def _is_regular(path: str) -> bool:
    """Whether it is a file or a folder here: a pipe can be read only once."""
    return os.path.isfile(path) or os.path.isdir(path)
