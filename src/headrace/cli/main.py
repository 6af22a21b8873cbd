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
from headrace.cli.console import ExitCode, report_error
from headrace.cli.diff import DiffArgs, ReportArgs, run_diff, run_report
from headrace.cli.doctor import run_doctor
from headrace.cli.migrate import MigrateArgs, run_migrate
from headrace.cli.option import command_of
from headrace.cli.options import DoctorArgs, HandlersArgs, JobArgs, RetryArgs, RunArgs
from headrace.cli.quote import QuoteArgs, SimulateArgs, run_quote, run_simulate
from headrace.cli.run import execute
from headrace.cli.words import WITH_OPTIONS_OF_BEAM, FallbacksInOrder
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


_COMMANDS: dict[type, Callable[..., int]] = {
    RunArgs: execute,
    RetryArgs: execute,
    QuoteArgs: run_quote,
    DoctorArgs: run_doctor,
    HandlersArgs: run_handlers,
    ReportArgs: run_report,
    DiffArgs: run_diff,
    SimulateArgs: run_simulate,
    MigrateArgs: run_migrate,
}
"""What runs each command, given its options: a dataclass, whose docstring is the command's help."""

for _kind in _COMMANDS:
    _of_beam: Any = {"cls": FallbacksInOrder, "context_settings": WITH_OPTIONS_OF_BEAM}
    _name = _kind.__name__.removesuffix("Args").lower()
    app.command(_name, **_of_beam if issubclass(_kind, JobArgs) else {})(command_of(_kind))


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
        run: Callable[..., int] = _COMMANDS.get(type(args), lambda _: 0)
        return run(args, called) if run is execute else run(args)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except ConfigurationError as error:
        report_error(Console(stderr=True), str(error))
        return ExitCode.WRONG_ARGUMENT
    except Exception as error:
        # typer's usage errors: its own classes or click's, depending on its version, with the same methods.
        if not hasattr(error, "format_message"):
            raise
        report_error(Console(stderr=True), error.format_message().replace(": Value error, ", ": ", 1))
        return ExitCode.WRONG_ARGUMENT
