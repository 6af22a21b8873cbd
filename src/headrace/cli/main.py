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
from headrace.cli.migrate import MigrateArgs, run_migrate
from headrace.cli.option import command_of
from headrace.cli.options import DoctorArgs, HandlersArgs, RetryArgs, RunArgs
from headrace.cli.quote import QuoteArgs, run_quote
from headrace.cli.report import ReportArgs, run_report
from headrace.cli.run import INTERRUPTED, MISUSED, execute
from headrace.cli.simulate import SimulateArgs, run_simulate
from headrace.core.errors import ConfigurationError

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


def run_handlers(args: HandlersArgs) -> int:
    """Lists the handlers, or describes one; returns the exit code."""
    from headrace.cli import catalogue  # noqa: PLC0415 - only for this

    handlers = catalogue.listed_handlers() if args.name is None else [catalogue.handler_named(args.name)]
    if args.markdown or args.as_json:
        typer.echo((catalogue.as_json if args.as_json else catalogue.as_markdown)(handlers))
    elif args.name is None:
        catalogue.show_handlers(Console(), handlers)
    else:
        catalogue.show_handler(Console(), handlers[0])
    return 0


_COMMANDS: dict[Any, Callable[[Any, float | None], int]] = {
    RunArgs: execute,
    RetryArgs: execute,
    DoctorArgs: lambda args, _: run_doctor(args),
    HandlersArgs: lambda args, _: run_handlers(args),
    MigrateArgs: lambda args, _: run_migrate(args),
    DiffArgs: lambda args, _: run_diff(args),
    ReportArgs: lambda args, _: run_report(args),
    SimulateArgs: lambda args, _: run_simulate(args),
    QuoteArgs: lambda args, _: run_quote(args),
}
"""What runs each command, given its options and when it was called (None: with the process). To typer a command is the
dataclass of its options, whose docstring is its help."""

_WITH_OPTIONS_OF_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("run", cls=FallbacksInOrder, context_settings=_WITH_OPTIONS_OF_BEAM)(command_of(RunArgs))
app.command("retry", cls=FallbacksInOrder, context_settings=_WITH_OPTIONS_OF_BEAM)(command_of(RetryArgs))
app.command("quote", cls=FallbacksInOrder, context_settings=_WITH_OPTIONS_OF_BEAM)(command_of(QuoteArgs))
app.command("doctor")(command_of(DoctorArgs))
app.command("handlers")(command_of(HandlersArgs))
app.command("report")(command_of(ReportArgs))
app.command("diff")(command_of(DiffArgs))
app.command("simulate")(command_of(SimulateArgs))
app.command("migrate")(command_of(MigrateArgs))


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
