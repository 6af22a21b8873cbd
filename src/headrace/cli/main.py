"""The entry point ``headrace``: its commands and their options."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from headrace import __version__
from headrace.cli.console import ExitCode, report_error
from headrace.cli.diff import DiffArgs, ReportArgs, run_diff, run_report
from headrace.cli.doctor import run_doctor
from headrace.cli.option import command_of
from headrace.cli.options import DoctorArgs, HandlersArgs, JobArgs, MigrateArgs, RetryArgs, RunArgs
from headrace.cli.quote import QuoteArgs, SimulateArgs, run_quote, run_simulate
from headrace.cli.run import execute
from headrace.cli.words import WITH_OPTIONS_OF_BEAM, FallbacksInOrder
from headrace.core.answer import counted
from headrace.core.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.migrate.files import MigratedFile

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


def run_migrate(args: MigrateArgs) -> int:
    """Shows or makes the changes; returns the exit code.

    Raises:
        ConfigurationError: a wrong argument, or the extra is missing.
    """
    if args.write and args.check:
        raise ConfigurationError("--check changes nothing; leave it or --write out.")
    from headrace.migrate.files import migrate_files  # noqa: PLC0415 - needs an extra
    from headrace.migrate.names import extras_in  # noqa: PLC0415 - only where there is something to move

    files = migrate_files(args.paths)
    changed = [file for file in files if file.is_changed]
    failed = _write_migrated(changed) if args.write else 0
    for file in () if args.write else changed:
        typer.echo(f"would change {file.path}" if args.check else file.diff(), nl=args.check)
    by_hand, notes = _report_findings(files)
    extras = sorted(set().union(*(extras_in(file.new) for file in changed)))
    typer.echo(_migrated(args, len(changed) - failed, by_hand, notes, extras), err=True)
    if by_hand and not failed:
        return ExitCode.REFUSED
    return ExitCode.FAILED if failed or (args.check and changed) else ExitCode.DONE


def _write_migrated(files: Sequence[MigratedFile]) -> int:
    """Writes files and prints their names; returns how many could not be written."""
    failed = 0
    errors = Console(stderr=True)
    for file in files:
        try:
            file.write()
        except OSError as error:
            report_error(errors, f"{file.path} cannot be written: {error}")
            failed += 1
        else:
            typer.echo(f"changed {file.path}")
    return failed


def _report_findings(files: Sequence[MigratedFile]) -> tuple[int, int]:
    """Prints what was found; returns how many things are left for a person, and how many not."""
    counts = {True: 0, False: 0}
    for file in files:
        for one in file.findings:
            counts[one.needs_person] += 1
            what = "by hand" if one.needs_person else "note"
            typer.echo(f"{file.path}{one.place}: {what}: {one.message}", err=True)
    return counts[True], counts[False]


def _migrated(args: MigrateArgs, changed: int, by_hand: int, notes: int, extras: Sequence[str]) -> str:
    verb = "changed" if args.write else "to change"
    left = f"{counted(by_hand, 'place')} left to do by hand, {counted(notes, 'note')}"
    hint = "" if args.write or args.check or not changed else " --write changes the files."
    package = f"headrace[{','.join(extras)}]" if extras else "headrace"
    needs = f" The code needs {package} wherever it runs." if changed else ""
    return f"{counted(changed, 'file')} {verb}, {left}.{needs}{hint}"


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
