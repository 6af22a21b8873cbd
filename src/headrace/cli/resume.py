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
    """The values that decide, by the user's names for them.

    Batch sizes, workers, placement, time limits, keys and the runner may change.

    Args:
        args: the command line.
        sources: the files that it names.
        columns: those that it chooses for the model.
        keep: those that it chooses for the output.
        text: the columns of CSV files that stay text.
    """
    arguments: dict[str, Any] = {"--model": args.model} if args.model is not None else {}
    arguments |= {f"--{name.replace('_', '-')}": value for name in NAMED if (value := getattr(args, name)) is not None}
    if args.fallback is not None:
        arguments |= {"--fallback": args.fallback, "--fallback-model": args.fallback_model}
    for option, pairs in (
        ("--handler-arg", args.handler_args),
        ("--inference-arg", args.inference_args),
        ("--fallback-arg", args.fallback_args),
    ):
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
