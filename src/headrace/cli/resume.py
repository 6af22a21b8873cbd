"""What of a command line decides the predictions, and so must be the same when a run goes on from an earlier one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.cli.handlers import parse_arguments
from headrace.cli.options import NAMED
from headrace.core.secrets import SECRET_ARGUMENTS

if TYPE_CHECKING:
    from headrace.cli.options import RetryArgs, RunArgs
    from headrace.jobs.files import Source


def decisive(
    args: RunArgs | RetryArgs,
    sources: Sequence[Source],
    *,
    columns: Sequence[str] | None,
    keep: Sequence[str] | None,
    text: Sequence[str],
) -> dict[str, Any]:
    """By the names that the user knows; batch sizes, workers, placement, time limits, keys and the runner may change.

    Args:
        args: of the command line.
        sources: the files that it means.
        columns: those that it chose for the model.
        keep: those that it chose for the output.
        text: the columns of CSV files that stay text.
    """
    arguments = {"--model": args.model} if args.model is not None else {}
    arguments |= {f"--{name}": value for name in NAMED if (value := getattr(args, name)) is not None}
    for option, pairs in (("--handler-arg", args.handler_args), ("--inference-arg", args.inference_args)):
        given = parse_arguments(option, pairs).items()
        arguments |= {f"{option} {name}": value for name, value in given if name not in SECRET_ARGUMENTS}
    return {
        "command": args.command,
        "the files": [source.path for source in sources],
        **{f"the file {source.path}": [*source[1:], _stamp(source.path)] for source in sources},
        "--handler": args.handler,
        **{name: [value, _stamp(value)] for name, value in arguments.items()},
        "--columns": columns,
        "--keep": keep,
        "--key": args.key,
        "--text-columns": text,
    }


def _stamp(value: Any) -> Any:
    """Of a value that names a file: what tells whether it is still the same; None of any other.

    None of a folder, too, whose time changes with whatever is kept there by the way, as a cache.
    """
    from headrace.jobs.files import stamp  # noqa: PLC0415 - importing Beam takes seconds, which --help need not

    if not isinstance(value, str) or os.path.isdir(value):
        return None
    try:
        return stamp(value)
    except (OSError, ValueError):
        return None
