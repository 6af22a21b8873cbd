"""The page of a run: the options that ask for it, and ``headrace report``, which makes it again from its figures."""

from __future__ import annotations

import os
from dataclasses import dataclass

import typer

from headrace.cli.option import argument, input_option, option, run_option
from headrace.core.errors import ConfigurationError, as_type_name


@dataclass(frozen=True, kw_only=True)
class ShownArgs:
    """Options of a run for its report and its forecast."""

    report: str | None = run_option(
        "Write a page about the run, what it took and what held it back: .html, with its figures beside it as .json.",
        "FILE",
    )
    report_messages: bool = run_option(
        "Let the report quote the messages of errors, which may hold values of rows.",
        name="--report-messages",
        default=False,
    )
    watch: int | None = run_option(
        "Serve the same page while the run goes on, on this port of 127.0.0.1; 0: any.", "PORT"
    )
    prometheus: str | None = run_option(
        "Show Prometheus the figures of the run, on this port, or in a file for node_exporter.", "[HOST:]PORT|FILE.prom"
    )
    stop_after: float | None = input_option(
        "Stop reading rows after this many seconds, for a trial: OUT has the rows read by then.", "SECONDS", min=0
    )
    quote: str | None = run_option(
        "What headrace quote --json has printed: its money, at the most, is the budget, and the report shows both.",
        "QUOTE.JSON",
    )


@dataclass(frozen=True, kw_only=True)
class ChangedArgs:
    """The option of a run that takes predictions over."""

    changed_since: str | None = run_option(
        "Predict only rows that are not in OUT, or that have changed, an earlier output with a --report beside it; "
        "the others take its predictions. If the model has changed, all rows.",
        "OUT",
    )


@dataclass(frozen=True, kw_only=True)
class CauseArgs:
    """The option of a retry that chooses dead letters."""

    cause: str | None = input_option(
        "Retry only dead letters with this text in their STAGE TYPE: MESSAGE, as the summary has it; the others stay.",
        "TEXT",
    )


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
