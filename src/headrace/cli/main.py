"""The entry point ``headrace``: its commands and their options."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace import __version__
from headrace.cli.console import report_error
from headrace.cli.diff import DiffArgs, run_diff
from headrace.cli.doctor import run_doctor
from headrace.cli.fallbacks import FallbacksInOrder
from headrace.cli.option import command_of
from headrace.cli.options import DoctorArgs, HandlersArgs, MigrateArgs, RetryArgs, RunArgs
from headrace.cli.run import INTERRUPTED, MISUSED, execute
from headrace.core.errors import ConfigurationError

_EXIT_CODES = (
    "Exit codes: 0 every row is out, 1 the run failed, 2 a wrong argument or input, 3 too many rows failed or a "
    "pipe was empty, 4 the budget is spent, 130 interrupted, 143 terminated."
)

_RUN = "\n\n".join(
    (
        "Predict for every row of JSONL, CSV or Parquet files, or for files themselves (--format files).",
        "The model's file decides which handler runs it, and which columns it gets, unless --handler and --columns do.",
        "Each row comes out once: with its prediction in OUT or, if something fails for it, with the error in the dead "
        "letters beside OUT (predictions.jsonl: predictions.dead-letters.jsonl). Both files appear at the end, when "
        "everything has succeeded; until then, and if the run fails or is interrupted, an earlier OUT is left alone.",
        "Options that are the same each time go into headrace.toml. Every option that is not listed here goes to "
        "Apache Beam, for example --direct_num_workers=4.",
        _EXIT_CODES,
    )
)

_RETRY = "\n\n".join(
    (
        "Predict for the rows of dead letters, as headrace run does for those of files.",
        "Each row goes through the model as it was first read, and comes out once: in OUT, or in new dead letters, "
        "which add to the attempts of the old ones. With --into, OUT is the output that lacks the rows.",
        "Every other option goes to Apache Beam, for example --direct_num_workers=4.",
        _EXIT_CODES,
    )
)

_DOCTOR = "\n\n".join(
    (
        "Show what Headrace runs on this machine, or what a handler needs on it.",
        "Without HANDLER or --model: the managers of shared models, with their models, memory, clients and hosts, and "
        "what killed processes left behind.",
        "With one of them: loads its model once, as for sharing, and reports what that takes, what each process would "
        "need, what batches cost (--rows), and where placement='auto' would put the model. Nothing stays behind.",
        "Exit codes: 0 all is well, 1 something was left behind, or the model fails, 2 a wrong argument or input, 130 "
        "interrupted.",
    )
)

_HANDLERS = "\n\n".join(
    (
        "List the handlers that --handler knows by name: Headrace's, and those of other installed packages.",
        "With NAME: what that one takes and predicts, its parameters, what to install, and an example.",
    )
)

_MIGRATE = "\n\n".join(
    (
        "Move code over from apache_beam.ml.inference: rewrite its imports and attributes to Headrace's.",
        "Shows the changes as a diff; --write makes them. Names without a counterpart stay Beam's. What it cannot know "
        "(classes that are compared, names in text, dependencies) it lists as file:line: 'by hand' needs a change, a "
        "'note' does not.",
        "Exit codes: 0 nothing is left to do by hand, 1 a file cannot be written, or with --check would change, 2 a "
        "wrong argument, 3 something is left to do by hand.",
    )
)

_DIFF = "\n\n".join(
    (
        "Compare the predictions of two runs, row by row: how many changed, and by how much.",
        "Rows are matched by --id, or by their place. The share that changed, and the mean of new - old, have 95 % "
        "intervals, for which the rows count as a random sample.",
        "Exit codes: 0 compared, 2 a wrong argument or outputs that cannot be compared, 3 more rows changed than "
        "--threshold.",
    )
)

app = typer.Typer(
    name="headrace",
    help="Headrace: run models over files, and lose no row.",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def headrace(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Headrace: run models over files, and lose no row."""
    if version:
        typer.echo(f"headrace {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def list_handlers(args: HandlersArgs) -> int:
    """Lists the handlers; returns the exit code."""
    from headrace.cli import catalogue  # noqa: PLC0415 - only for this

    handlers = catalogue.listed_handlers() if args.name is None else [catalogue.handler_named(args.name)]
    if args.markdown or args.as_json:
        typer.echo((catalogue.as_json if args.as_json else catalogue.as_markdown)(handlers))
    elif args.name is None:
        catalogue.show_handlers(Console(), handlers)
    else:
        catalogue.show_handler(Console(), handlers[0])
    return 0


def migrate(args: MigrateArgs) -> int:
    """Moves code over; returns the exit code."""
    from headrace.cli.migrate import run_migrate  # noqa: PLC0415 - only for this

    return run_migrate(args)


_COMMANDS: dict[Any, Callable[[Any, float | None], int]] = {
    RunArgs: execute,
    RetryArgs: execute,
    DoctorArgs: lambda args, _: run_doctor(args),
    HandlersArgs: lambda args, _: list_handlers(args),
    MigrateArgs: lambda args, _: migrate(args),
    DiffArgs: lambda args, _: run_diff(args),
}
"""What runs each command, given its options and when it was called (None: with the process). To typer a command is the
dataclass of its options."""

_WITH_OPTIONS_OF_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("run", cls=FallbacksInOrder, help=_RUN, context_settings=_WITH_OPTIONS_OF_BEAM)(command_of(RunArgs))
app.command("retry", cls=FallbacksInOrder, help=_RETRY, context_settings=_WITH_OPTIONS_OF_BEAM)(command_of(RetryArgs))
app.command("doctor", help=_DOCTOR)(command_of(DoctorArgs))
app.command("handlers", help=_HANDLERS)(command_of(HandlersArgs))
app.command("diff", help=_DIFF)(command_of(DiffArgs))
app.command("migrate", help=_MIGRATE)(command_of(MigrateArgs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code; without ``arguments`` runs the process's own, and ends it."""
    code = _exit_code(arguments)
    if arguments is None:
        _end_process(code)
    return code


def _end_process(code: int) -> None:
    """Ends at once: to take apart all modules takes Python a third of a second if a framework is among them."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):  # nobody reads
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    called = None if arguments is None else time.monotonic()
    try:
        args = app(None if arguments is None else list(arguments), prog_name="headrace", standalone_mode=False)
        return _COMMANDS[type(args)](args, called) if type(args) in _COMMANDS else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except ConfigurationError as error:
        report_error(Console(stderr=True), str(error))
        return MISUSED
    except Exception as error:
        # typer's usage errors: its own classes or click's, depending on its version, with the same methods.
        if not hasattr(error, "format_message"):
            raise
        report_error(Console(stderr=True), error.format_message().replace(": Value error, ", ": ", 1))
        return MISUSED
