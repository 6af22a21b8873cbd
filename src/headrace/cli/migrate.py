"""``headrace migrate``: moves code over from ``apache_beam.ml.inference``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from headrace.cli.console import ExitCode, report_error
from headrace.cli.option import argument, option
from headrace.core.answer import counted
from headrace.core.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.migrate.files import MigratedFile


@dataclass(frozen=True, kw_only=True)
class MigrateArgs:
    """Move code over from apache_beam.ml.inference: rewrite its imports and attributes to Headrace's.

    Shows the changes as a diff; --write makes them. Names without a counterpart stay Beam's. What it cannot know
    (classes that are compared, names in text, dependencies) it lists as file:line: 'by hand' needs a change, a 'note'
    does not.

    Exit codes: 0 nothing is left to do by hand, 1 a file cannot be written, or with --check would change, 2 a wrong
    argument, 3 something is left to do by hand.
    """

    paths: list[str] = argument("PATH", "Python files, notebooks, or folders of them.")
    write: bool = option("Change the files; by default a diff shows what would change.", name="--write", default=False)
    check: bool = option(
        "Only name the files that would change; exit code 1 if there are any.", name="--check", default=False
    )


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
    failed = _write(changed) if args.write else 0
    for file in () if args.write else changed:
        typer.echo(f"would change {file.path}" if args.check else file.diff(), nl=args.check)
    by_hand, notes = _report_findings(files)
    extras = sorted(set().union(*(extras_in(file.new) for file in changed)))
    typer.echo(_summary(args, len(changed) - failed, by_hand, notes, extras), err=True)
    if by_hand and not failed:
        return ExitCode.REFUSED
    return ExitCode.FAILED if failed or (args.check and changed) else ExitCode.DONE


def _write(files: Sequence[MigratedFile]) -> int:
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


def _summary(args: MigrateArgs, changed: int, by_hand: int, notes: int, extras: Sequence[str]) -> str:
    verb = "changed" if args.write else "to change"
    left = f"{counted(by_hand, 'place')} left to do by hand, {counted(notes, 'note')}"
    hint = "" if args.write or args.check or not changed else " --write changes the files."
    package = f"headrace[{','.join(extras)}]" if extras else "headrace"
    needs = f" The code needs {package} wherever it runs." if changed else ""
    return f"{counted(changed, 'file')} {verb}, {left}.{needs}{hint}"
