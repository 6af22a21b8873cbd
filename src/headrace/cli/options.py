"""The options of each command, as one dataclass; its fields are what typer reads and what the command gets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar

import typer

from headrace.cli.file_options import FileArgs, TypeArgs, WorkerArgs
from headrace.cli.option import INPUT as _INPUT
from headrace.cli.option import MODEL as _MODEL
from headrace.cli.option import OUTPUT as _OUTPUT
from headrace.cli.option import REPORT as _REPORT
from headrace.cli.option import RUN as _RUN
from headrace.cli.option import option as _option
from headrace.cli.option import share
from headrace.cli.output_options import OutputArgs
from headrace.cli.report_options import ShowArgs
from headrace.cli.settings import in_place_of_output, unless_dry, use_settings
from headrace.cli.spending_options import SpendingArgs

_HANDLER_HELP = "An installed handler (sklearn-numpy, ...) or package.module:factory; by default the model decides."
_OUTPUT_HELP = "The file for the predictions: .jsonl, .csv (both also .gz) or .parquet; - is standard output."
_FOLDER_HELP = "FOLDER/ gets a file for each input, and again only of those that are new or have changed."
NAMED = ("url", "prompt", "method", "batch_directory")
"""Parameters of handlers that have an option of their own."""


class PlacementName(str, Enum):
    """Where a model can live."""

    process = "process"
    machine = "machine"
    auto = "auto"


def _handlers_like(incomplete: str) -> list[str]:
    """For the completion of a shell."""
    from headrace.cli.handlers import handler_names  # noqa: PLC0415 - only when a shell asks

    return [name for name in handler_names() if name.startswith(incomplete)]


_Config = Annotated[
    str | None,
    _option(
        "--config",
        _RUN,
        "A file with options of this command. By default headrace.toml of the current folder, if there is one.",
        "FILE",
        is_eager=True,
        callback=use_settings,
    ),
]
_MaxBatchSize = Annotated[int | None, _option("--max-batch-size", _MODEL, "Most rows in a batch.")]


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """Options of every command that runs a model."""

    handler: Annotated[Any, _option("--handler", _MODEL, _HANDLER_HELP, "NAME")] = None
    model: Annotated[
        str | None,
        _option(
            "--model", _MODEL, "Where the model is: a path, a URI, or an id on a hub, as the handler takes it.", "URI"
        ),
    ] = None
    handler_args: Annotated[
        list[str] | None,
        _option("--handler-arg", _MODEL, "A parameter of the handler, as JSON or text. Repeatable.", "KEY=VALUE"),
    ] = None
    inference_args: Annotated[
        list[str] | None,
        _option(
            "--inference-arg", _MODEL, "An argument of the model's call, as JSON or text. Repeatable.", "KEY=VALUE"
        ),
    ] = None
    key: Annotated[
        str | None, _option("--key", _MODEL, "The column of the key, for a handler of keyed examples.", "COLUMN")
    ] = None
    columns: Annotated[
        list[str] | None,
        _option(
            "--columns",
            _INPUT,
            "The columns that the model sees: names or globs. By default those that the model names, else all.",
            "A,B,'C*'",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JobArgs(ShowArgs, SpendingArgs, OutputArgs, ModelArgs):
    """Options of both ``headrace run`` and ``headrace retry``."""

    handler: Annotated[
        str | None, _option("--handler", _MODEL, _HANDLER_HELP, "NAME", autocompletion=_handlers_like)
    ] = None
    config: _Config = None
    url: Annotated[
        str | None,
        _option("--url", _MODEL, "Where the endpoint of a remote model is, such as http://localhost:8000/v1.", "URL"),
    ] = None
    prompt: Annotated[
        str | None,
        _option(
            "--prompt",
            _MODEL,
            "The prompt for each row of a language model. Column names go in braces: 'Classify: {text}'.",
            "TEMPLATE",
        ),
    ] = None
    method: Annotated[
        str | None,
        _option(
            "--method",
            _MODEL,
            "What a scikit-learn or XGBoost model is asked: predict, predict_proba, decision_function or transform.",
            "NAME",
        ),
    ] = None
    batch_directory: Annotated[
        str | None,
        _option(
            "--batch-directory",
            _MODEL,
            "Send rows with the provider's Batch API, and keep in this folder what was sent.",
            "FOLDER",
        ),
    ] = None
    min_batch_size: Annotated[
        int | None, _option("--min-batch-size", _MODEL, "Fewest rows in a batch; the last one may have fewer.")
    ] = None
    max_batch_size: _MaxBatchSize = None
    length_column: Annotated[
        str | None,
        _option(
            "--length-column",
            _MODEL,
            "Batch rows of similar length: this column's number, or the length of its text. For models that pad; "
            "handlers of texts need no column.",
            "COLUMN",
        ),
    ] = None
    fallback: Annotated[
        list[str] | None,
        _option(
            "--fallback",
            _MODEL,
            "Another handler, for rows that the first one's model failed on. Repeatable, in order.",
            "NAME",
            autocompletion=_handlers_like,
        ),
    ] = None
    fallback_model: Annotated[
        list[str] | None,
        _option("--fallback-model", _MODEL, "Where the model of the --fallback before it is, like --model.", "URI"),
    ] = None
    fallback_args: Annotated[
        list[str] | None,
        _option(
            "--fallback-arg",
            _MODEL,
            "A parameter of the --fallback before it, like --handler-arg. Repeatable.",
            "KEY=VALUE",
        ),
    ] = None
    placement: Annotated[
        PlacementName | None,
        _option(
            "--placement",
            _RUN,
            "A model for each worker process, or one for the machine; auto: one if memory is short. By default as the "
            "handler says.",
        ),
    ] = None
    isolate: Annotated[
        bool,
        _option(
            "--isolate/--no-isolate",
            _RUN,
            "Run the model in a process of its own: a row that crashes it costs that row only.",
        ),
    ] = False
    timeout: Annotated[
        float | None,
        _option(
            "--timeout",
            _RUN,
            "The longest that a batch, or loading the model, may take; rows that hang go to the dead letters.",
            "SECONDS",
        ),
    ] = None
    threshold: Annotated[
        float | None,
        _option(
            "--threshold",
            _RUN,
            "The share of rows that may fail, as 0.01 or 1%. If more do, or by default all, OUT is not written.",
            "SHARE",
            parser=share,
        ),
    ] = None
    resume: Annotated[
        bool,
        _option(
            "--resume/--no-resume",
            _RUN,
            "Keep what is done if the run fails, is interrupted or killed; the same command then continues.",
        ),
    ] = False
    runner: Annotated[
        str | None,
        _option("--runner", _RUN, "Beam's runner. By default none: this process runs the rows, without Beam.", "NAME"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunArgs(FileArgs, WorkerArgs, JobArgs):
    """``headrace run``, as it was typed."""

    command: ClassVar[str] = "run"
    output: Annotated[
        str | None,
        _option(
            "--output", _OUTPUT, f"{_OUTPUT_HELP} {_FOLDER_HELP} Needed, but for --dry-run.", "OUT", callback=unless_dry
        ),
    ] = None
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Files or globs ('data/*.jsonl'), local or of any filesystem of Beam; - is standard input.",
        ),
    ]
    """Inputs, mixed with Beam's options."""
    limit: Annotated[int | None, _option("--limit", _INPUT, "Read only the first rows.", "COUNT", min=1)] = None
    dry_run: Annotated[
        bool,
        _option(
            "--dry-run",
            _RUN,
            "Read the first 1,000 rows, or --limit, and show types and examples: no model is loaded.",
            is_eager=True,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class RetryArgs(TypeArgs, JobArgs):
    """``headrace retry``, as it was typed; the inputs are dead letters of an earlier run."""

    command: ClassVar[str] = "retry"
    output: Annotated[str | None, _option("--output", _OUTPUT, _OUTPUT_HELP, "OUT")] = None
    into: Annotated[
        str | None,
        _option(
            "--into",
            _OUTPUT,
            "The output that the dead letters are of: predictions are put into it, in the order of the input.",
            "OUT",
            callback=in_place_of_output,
        ),
    ] = None
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="DEAD_LETTERS",
            help="Files or globs of dead letters, of headrace run or retry.",
        ),
    ]
    """Inputs, mixed with Beam's options."""


@dataclass(frozen=True, kw_only=True)
class DoctorArgs(FileArgs, ModelArgs):
    """``headrace doctor``, as it was typed."""

    handler: Annotated[
        str | None, typer.Argument(metavar="HANDLER", help=_HANDLER_HELP, autocompletion=_handlers_like)
    ] = None
    config: _Config = None
    max_batch_size: _MaxBatchSize = None
    rows: Annotated[
        str | None, _option("--rows", _INPUT, "A file of rows, with which batches are measured.", "FILE")
    ] = None
    processes: Annotated[
        int | None,
        _option(
            "--processes",
            _REPORT,
            "How many worker processes to plan for. By default one for each core.",
            "COUNT",
            min=1,
        ),
    ] = None
    clean: Annotated[
        bool, _option("--clean", _REPORT, "Remove files of managers, and end hosts, whose owner is gone.")
    ] = False
    as_json: Annotated[bool, _option("--json", _REPORT, "Print JSON: plain values, in bytes and seconds.")] = False
    verbose: Annotated[bool, _option("--verbose", _REPORT, "Show the log, and the traceback of a failure.")] = False


@dataclass(frozen=True, kw_only=True)
class HandlersArgs:
    """``headrace handlers``, as it was typed."""

    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Describe this one: its parameters, and an example.", autocompletion=_handlers_like
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of objects.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the whole table as Markdown.")] = False


@dataclass(frozen=True, kw_only=True)
class MigrateArgs:
    """``headrace migrate``, as it was typed."""

    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Python files, notebooks, or folders of them.")]
    write: Annotated[
        bool,
        typer.Option("--write", help="Change the files; by default a diff shows what would change."),
    ] = False
    check: Annotated[
        bool, typer.Option("--check", help="Only name the files that would change; exit code 1 if there are any.")
    ] = False
