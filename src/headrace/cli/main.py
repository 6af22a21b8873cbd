"""The entry point ``headrace``: its commands and their options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from headrace import __version__
from headrace.cli import options
from headrace.cli.doctor import DoctorArgs, run_doctor
from headrace.cli.errors import report_error
from headrace.cli.run import INTERRUPTED, MISUSED, execute
from headrace.cli.run_args import RunArgs

_EXIT_CODES = (
    "Exit codes: 0 every row is out, 1 the run failed, 2 a wrong argument or input, 3 too many rows failed or a "
    "pipe was empty, 130 interrupted."
)

_RUN = "\n\n".join(
    (
        "Predict for every row of JSONL, CSV or Parquet files.",
        "Each row comes out once: with its prediction in OUT or, if something fails for it, with the error in the dead "
        "letters beside OUT (predictions.jsonl: predictions.dead-letters.jsonl). Both files appear at the end, when "
        "everything has succeeded; until then, and if the run fails or is interrupted, an earlier OUT stays as it was.",
        "Every other option is taken for one of Apache Beam's, for example --direct_num_workers=4.",
        _EXIT_CODES,
    )
)

_RETRY = "\n\n".join(
    (
        "Predict for the rows of dead letters, as headrace run does for those of files.",
        "Each row goes through the model as it was when it was read, and comes out once: in OUT, or in new dead "
        "letters, whose attempts go on from the old ones. DEAD_LETTERS stays as it is.",
        "Every other option is taken for one of Apache Beam's, for example --direct_num_workers=4.",
        _EXIT_CODES,
    )
)

_DOCTOR = "\n\n".join(
    (
        "Say what there is of Headrace on this machine; or what a handler needs on it.",
        "Without HANDLER: the managers of shared models, their models, memory, clients and hosts, and what killed "
        "processes have left over.",
        "With HANDLER: loads its model once as for sharing, says what that takes, what each process would need, what "
        "batches cost (--rows), and where placement='auto' would have the model live. Nothing stays behind.",
        "Exit codes: 0 all is well, 1 something is left over, or the model fails, 2 a wrong argument or input, 130 "
        "interrupted.",
    )
)

_HANDLERS = "\n\n".join(
    (
        "List the handlers that --handler knows by name: Headrace's, and those of other installed packages.",
        "Where something is missing, it says what to install. No framework is imported for Headrace's own.",
    )
)

app = typer.Typer(
    name="headrace",
    help="Headrace: run models over files, and lose no row.",
    add_completion=False,
    rich_markup_mode="rich",
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


@app.command(help=_RUN, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(  # noqa: PLR0917 - typer passes them by name
    inputs: options.Inputs,
    handler: options.Handler,
    output: options.Output,
    dead_letters: options.DeadLetters = None,
    model: options.Model = None,
    handler_arg: options.HandlerArg = None,
    inference_arg: options.InferenceArg = None,
    columns: options.Columns = None,
    keep: options.Keep = None,
    key: options.Key = None,
    text_columns: options.TextColumns = None,
    file_format: options.Format = None,
    delimiter: options.Delimiter = None,
    min_batch_size: options.MinBatchSize = None,
    max_batch_size: options.MaxBatchSize = None,
    placement: options.Placement = None,
    isolate: options.Isolate = False,
    timeout: options.Timeout = None,
    threshold: options.Threshold = None,
    resume: options.Resume = False,
    runner: options.Runner = None,
    no_progress: options.NoProgress = False,
    verbose: options.Verbose = False,
) -> int:
    """Predicts for every row of some files."""
    return execute(
        RunArgs(
            arguments=inputs,
            handler=handler,
            output=output,
            dead_letters=dead_letters,
            model=model,
            handler_args=handler_arg or (),
            inference_args=inference_arg or (),
            columns=columns,
            keep=keep,
            key=key,
            text_columns=text_columns,
            file_format=file_format.value if file_format else None,
            delimiter=delimiter,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            placement=placement.value if placement else None,
            isolate=isolate,
            timeout=timeout,
            threshold=threshold,
            resume=resume,
            runner=runner,
            progress=not no_progress,
            verbose=verbose,
        )
    )


@app.command(help=_RETRY, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def retry(  # noqa: PLR0917 - typer passes them by name
    letters: options.Letters,
    handler: options.Handler,
    output: options.Output,
    dead_letters: options.DeadLetters = None,
    model: options.Model = None,
    handler_arg: options.HandlerArg = None,
    inference_arg: options.InferenceArg = None,
    columns: options.Columns = None,
    keep: options.Keep = None,
    key: options.Key = None,
    min_batch_size: options.MinBatchSize = None,
    max_batch_size: options.MaxBatchSize = None,
    placement: options.Placement = None,
    isolate: options.Isolate = False,
    timeout: options.Timeout = None,
    threshold: options.Threshold = None,
    resume: options.Resume = False,
    runner: options.Runner = None,
    no_progress: options.NoProgress = False,
    verbose: options.Verbose = False,
) -> int:
    """Predicts for every row of some dead letters."""
    return execute(
        RunArgs(
            arguments=letters,
            retry=True,
            handler=handler,
            output=output,
            dead_letters=dead_letters,
            model=model,
            handler_args=handler_arg or (),
            inference_args=inference_arg or (),
            columns=columns,
            keep=keep,
            key=key,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            placement=placement.value if placement else None,
            isolate=isolate,
            timeout=timeout,
            threshold=threshold,
            resume=resume,
            runner=runner,
            progress=not no_progress,
            verbose=verbose,
        )
    )


@app.command(help=_DOCTOR)
def doctor(  # noqa: PLR0917 - typer passes them by name
    handler: options.Subject = None,
    model: options.Model = None,
    handler_arg: options.HandlerArg = None,
    inference_arg: options.InferenceArg = None,
    key: options.Key = None,
    max_batch_size: options.MaxBatchSize = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    text_columns: options.TextColumns = None,
    file_format: options.Format = None,
    delimiter: options.Delimiter = None,
    processes: options.Processes = None,
    clean: options.Clean = False,
    as_json: options.Json = False,
    verbose: options.DoctorVerbose = False,
) -> int:
    """Says what there is on this machine, or what a handler needs on it."""
    return run_doctor(
        DoctorArgs(
            handler=handler,
            model=model,
            handler_args=handler_arg or (),
            inference_args=inference_arg or (),
            key=key,
            max_batch_size=max_batch_size,
            rows=rows,
            columns=columns,
            text_columns=text_columns,
            file_format=file_format.value if file_format else None,
            delimiter=delimiter,
            processes=processes,
            clean=clean,
            as_json=as_json,
            verbose=verbose,
        )
    )


@app.command(help=_HANDLERS)
def handlers(markdown: options.Markdown = False) -> int:
    """Lists the handlers that there are."""
    from headrace.cli.catalogue import as_markdown, listed_handlers, show_handlers  # noqa: PLC0415 - only for this

    if markdown:
        typer.echo(as_markdown(listed_handlers()))
    else:
        show_handlers(Console(), listed_handlers())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (by default the process's own) and returns the exit code."""
    try:
        code = app(None if arguments is None else list(arguments), prog_name="headrace", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:
        # typer's errors of usage: its own classes or click's, by its version; alike in what they can do.
        if not hasattr(error, "format_message"):
            raise
        report_error(Console(stderr=True), error.format_message())
        return MISUSED
    return code if isinstance(code, int) else 0
