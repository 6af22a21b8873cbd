"""What of a command line decides the predictions, and so must be the same when a run goes on from an earlier one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.cli.fallbacks import given_fallbacks
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
    types: Mapping[str, str],
) -> dict[str, Any]:
    """The values that decide, by the user's names for them.

    Batch sizes, workers, placement, time limits, keys and the runner may change.

    Args:
        args: the command line.
        sources: the files that it names.
        columns: those that it chooses for the model.
        keep: those that it chooses for the output.
        types: of the columns of CSV files.
    """
    arguments: dict[str, Any] = {"--model": args.model} if args.model is not None else {}
    arguments |= {f"--{name.replace('_', '-')}": value for name in NAMED if (value := getattr(args, name)) is not None}
    for option, pairs in (("--handler-arg", args.handler_args), ("--inference-arg", args.inference_args)):
        arguments |= _decisive(option, parse_arguments(option, pairs))
    for number, fallback in enumerate(given_fallbacks(args), start=1):
        which = f" of fallback {number}" if number > 1 else ""
        arguments |= {f"--fallback{which}": fallback.name, f"--fallback-model{which}": fallback.model}
        arguments |= _decisive(f"--fallback-arg{which}", fallback.arguments)
    return {
        "command": args.command,
        "the files": [source.path for source in sources],
        **{f"the file {source.path}": [*source[1:4], source.files or _stamp(source.path)] for source in sources},
        "--handler": args.handler,
        **{name: [value, _stamp(value)] for name, value in arguments.items()},
        "--columns": columns,
        "--decode": args.decode,
        "--keep": keep,
        **({"--explode": True} if args.explode else {}),
        "--key": args.key,
        "the types of CSV columns (--types)": types,
    }


def _decisive(option: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{option} {name}": value for name, value in given.items() if name not in SECRET_ARGUMENTS}


def _stamp(value: Any) -> Any:
    """What tells whether the file that a value names is still the same; None for any other value.

    None for a folder, too: its time changes with whatever is cached there.
    """
    from headrace.jobs.files import stamp  # noqa: PLC0415 - as in headrace.cli.run

    if not isinstance(value, str) or os.path.isdir(value):
        return None
    try:
        return stamp(value)
    except (OSError, ValueError):
        return None
