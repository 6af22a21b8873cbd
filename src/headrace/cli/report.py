"""``headrace report``: makes the page of a run again, from its figures."""

from __future__ import annotations

import os
from dataclasses import dataclass

import typer

from headrace.cli.option import argument, option
from headrace.core.errors import ConfigurationError, as_type_name


@dataclass(frozen=True, kw_only=True)
class ReportArgs:
    """Make the page of a run again, from the figures that headrace run --report has written beside it.

    With --compare, another run's figures stand beside.
    """

    run: str = argument("RUN", "The .json that headrace run --report has written.")
    compare: str | None = option("Another run's .json, to set beside.", "OTHER")
    output: str | None = option("The page; by default RUN with .html.", "PAGE")


def run_report(args: ReportArgs) -> int:
    """Writes the page of a run, and prints its verdict; returns the exit code.

    Raises:
        ConfigurationError: a file is no report, or the page cannot be written.
    """
    from headrace.metrics.report import read_figures, render, write_text  # noqa: PLC0415 - only for this
    from headrace.metrics.verdict import verdict  # noqa: PLC0415 - as above

    page = args.output or f"{os.path.splitext(args.run)[0]}.html"
    figures, other = read_figures(args.run), args.compare and read_figures(args.compare)
    try:
        said, text = verdict(figures), render(figures, other or None)
    except ConfigurationError:
        raise
    except Exception as error:  # of values that no report has
        given = f"{args.run} or {args.compare}" if args.compare else args.run
        raise ConfigurationError(f"{given} is no whole report: {as_type_name(error)}: {error}.") from error
    try:
        write_text(page, text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {page}: {error.strerror or error}.") from error
    typer.echo(f"{said}\nwritten  {page}")
    return 0
