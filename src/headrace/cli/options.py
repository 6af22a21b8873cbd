"""The options of commands: dataclasses, whose docstring is the help, and whose fields are what typer reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from headrace.cli.handlers import handlers_like
from headrace.cli.option import (
    argument,
    count,
    in_place_of_output,
    input_option,
    model_option,
    option,
    output_option,
    report_option,
    run_option,
    share,
    use_settings,
)

_HANDLER_HELP = "An installed handler (sklearn-numpy, ...) or package.module:factory; by default the model decides."
_OUTPUT_HELP = "The file for the predictions: .jsonl, .csv (both also .gz) or .parquet; - is standard output."
_FOLDER_HELP = "FOLDER/ gets a file for each input, and again only of those that are new or have changed."
NAMED = ("url", "prompt", "method", "batch_directory")
"""Parameters of handlers that have an option of their own."""


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """Options of every command that runs a model."""

    handler: str | None = model_option(_HANDLER_HELP, "NAME", autocompletion=handlers_like)
    model: str | None = model_option(
        "Where the model is: a path, a URI, or an id on a hub, as the handler takes it.", "URI"
    )
    handler_args: list[str] | None = model_option(
        "A parameter of the handler, as JSON or text. Repeatable.", "KEY=VALUE", name="--handler-arg"
    )
    inference_args: list[str] | None = model_option(
        "An argument of the model's call, as JSON or text. Repeatable.", "KEY=VALUE", name="--inference-arg"
    )
    config: str | None = run_option(
        "A file with options of this command. By default headrace.toml of the current folder, if there is one.",
        "FILE",
        is_eager=True,
        callback=use_settings,
    )
    key: str | None = model_option("The column of the key, for a handler of keyed examples.", "COLUMN")
    columns: list[str] | None = input_option(
        "The columns that the model sees: names or globs. By default those that the model names, else all.", "A,B,'C*'"
    )
    max_batch_size: int | None = model_option("Most rows in a batch.")
    types: list[str] | None = input_option(
        "Types of the columns of CSV files: str, int, float, comma_float (1,5), bool, date, datetime or json. By "
        "default the first 1,000 rows decide.",
        "A=TYPE,'C*=TYPE'",
    )
    decode: str | None = input_option(
        "With --format files: makes the column content of a file's bytes, on the threads that read.", "MODULE:FUNCTION"
    )


@dataclass(frozen=True, kw_only=True)
class FileArgs:
    """Options of commands that read files of rows."""

    text_columns: list[str] | None = input_option("Columns of CSV files that stay text: --types A=str.", "A,B,'C*'")
    file_format: Literal["jsonl", "csv", "parquet", "files"] | None = input_option(
        "Format of the inputs; by default their extensions decide. files: each file is a row of path, size and "
        "modified, and of its content if --columns names it.",
        name="--format",
    )
    delimiter: str | None = input_option("Delimiter of CSV files; by default a comma, or a tab for .tsv.", "CHARACTER")


@dataclass(frozen=True, kw_only=True)
class JobArgs(ModelArgs):
    """Options of both ``headrace run`` and ``headrace retry``."""

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
    dead_letters: str | None = output_option(
        "The file for the dead letters: .jsonl, .csv (both also .gz) or .parquet; or a FOLDER/ of them. By default "
        "beside OUT, as JSONL.",
        "FILE",
    )
    output_format: Literal["jsonl", "csv", "parquet"] | None = output_option(
        "How to write rows with --output -, by default as JSON lines, or FOLDER/, by default as each input.",
    )
    keep: list[str] | None = output_option(
        "The columns to write beside the prediction: names or globs. All by default; '' for none.", "A,B,'C*'"
    )
    explode: bool = output_option(
        "Write a prediction of several values as several columns: prediction_0, or prediction_NAME where the model "
        "names them, as its classes.",
        default=False,
    )
    no_progress: bool = run_option(
        "Show only the summary: no bar, and no line every half minute where there is no terminal.",
        name="--no-progress/--progress",
        default=False,
    )
    as_json: bool = run_option(
        "Print what came of the run as one JSON object on standard output, in place of the summary.",
        name="--json/--no-json",
        default=False,
    )
    verbose: bool = run_option(
        "Show the log, Beam's too, the traceback of a failure, and batch sizes and loading in the summary.",
        default=False,
    )
    cache: str | None = run_option(
        "A file of earlier predictions: rows that are in it are not predicted again.", "PATH"
    )
    budget: float | None = run_option(
        "Stops the run when requests on this machine have cost this much, at the prices of --price. The same command "
        "continues, with --resume or --cache.",
        "AMOUNT",
    )
    budget_tokens: int | None = run_option("The same in tokens, of prompts and answers.", "COUNT")
    budget_per_row: float | None = run_option("No further request for a row whose requests have cost more.", "AMOUNT")
    prices: list[str] | None = run_option(
        "A model's price for a million input tokens, a million output tokens and, if it has them, a request and a "
        "million cached input tokens; * is every other model. Repeatable.",
        "MODEL=IN,OUT[,REQUEST[,CACHED]]",
        name="--price",
    )
    url: str | None = model_option("Where the endpoint of a remote model is, such as http://localhost:8000/v1.", "URL")
    prompt: str | None = model_option(
        "The prompt for each row of a language model. Column names go in braces: 'Classify: {text}'.", "TEMPLATE"
    )
    method: str | None = model_option(
        "What a scikit-learn or XGBoost model is asked: predict, predict_proba, decision_function or transform.", "NAME"
    )
    batch_directory: str | None = model_option(
        "Send rows with the provider's Batch API, and keep in this folder what was sent.", "FOLDER"
    )
    min_batch_size: int | None = model_option("Fewest rows in a batch; the last one may have fewer.")
    length_column: str | None = model_option(
        "Batch rows of similar length: this column's number, or the length of its text. For models that pad; handlers "
        "of texts need no column.",
        "COLUMN",
    )
    fallback: list[str] | None = model_option(
        "Another handler, for rows that the first one's model failed on. Repeatable, in order.",
        "NAME",
        autocompletion=handlers_like,
    )
    fallback_model: list[str] | None = model_option(
        "Where the model of the --fallback before it is, like --model.", "URI"
    )
    fallback_args: list[str] | None = model_option(
        "A parameter of the --fallback before it, like --handler-arg. Repeatable.", "KEY=VALUE", name="--fallback-arg"
    )
    placement: Literal["process", "machine", "auto"] | None = run_option(
        "A model for each worker process, or one for the machine; auto: one if memory is short. By default as the "
        "handler says.",
    )
    isolate: bool = run_option(
        "Run the model in a process of its own: a row that crashes it costs that row only.", default=False
    )
    timeout: float | None = run_option(
        "The longest that a batch, or loading the model, may take; rows that hang go to the dead letters.", "SECONDS"
    )
    threshold: float | None = run_option(
        "The share of rows that may fail, as 0.01 or 1%. If more do, or by default all, OUT is not written.",
        "SHARE",
        parser=share,
    )
    resume: bool = run_option(
        "Keep what is done if the run fails, is interrupted or killed; the same command then continues.", default=False
    )
    runner: str | None = run_option("Beam's runner. By default none: this process runs the rows, without Beam.", "NAME")


@dataclass(frozen=True, kw_only=True)
class RunArgs(FileArgs, JobArgs):
    """Predict for every row of JSONL, CSV or Parquet files, or for files themselves (--format files).

    The model's file decides which handler runs it, and which columns it gets, unless --handler and --columns do.

    Each row comes out once: with its prediction in OUT or, if something fails for it, with the error in the dead
    letters beside OUT (predictions.jsonl: predictions.dead-letters.jsonl). Both files appear at the end, when
    everything has succeeded; until then, and if the run fails or is interrupted, an earlier OUT is left alone.

    Options that are the same each time go into headrace.toml. Every option that is not listed here goes to Apache Beam,
    for example --direct_num_workers=4.

    Exit codes: 0 every row is out, 1 the run failed, 2 a wrong argument or input, 3 too many rows failed or a pipe was
    empty, 4 the budget is spent, 130 interrupted, 143 terminated.
    """

    command: ClassVar[str] = "run"
    into: ClassVar[None] = None
    output: str | None = output_option(f"{_OUTPUT_HELP} {_FOLDER_HELP} Needed, but for --dry-run.", "OUT")
    arguments: list[str] = argument(
        "INPUT", "Files or globs ('data/*.jsonl'), local or of any filesystem of Beam; - is standard input."
    )
    """Inputs, mixed with Beam's options."""
    workers: int | None = run_option(
        "How many processes of this machine share the rows; auto: as many as it has room for.",
        "COUNT",
        default=1,
        parser=count,
    )
    changed_since: str | None = run_option(
        "Predict only rows that are not in OUT, or that have changed, an earlier output with a --report beside it; "
        "the others take its predictions. If the model has changed, all rows.",
        "OUT",
    )
    limit: int | None = input_option("Read only the first rows.", "COUNT", min=1)
    dry_run: bool = run_option(
        "Read the first 1,000 rows, or --limit, and show types and examples: no model is loaded.",
        name="--dry-run",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class RetryArgs(JobArgs):
    """Predict for the rows of dead letters, as headrace run does for those of files.

    Each row goes through the model as it was first read, and comes out once: in OUT, or in new dead letters, which add
    to the attempts of the old ones. With --into, OUT is the output that lacks the rows.

    Every other option goes to Apache Beam, for example --direct_num_workers=4.

    Exit codes: 0 every row is out, 1 the run failed, 2 a wrong argument or input, 3 too many rows failed or a pipe was
    empty, 4 the budget is spent, 130 interrupted, 143 terminated.
    """

    command: ClassVar[str] = "retry"
    workers: ClassVar[int] = 1
    limit: ClassVar[None] = None
    dry_run: ClassVar[bool] = False
    output: str | None = output_option(_OUTPUT_HELP, "OUT")
    cause: str | None = input_option(
        "Retry only dead letters with this text in their STAGE TYPE: MESSAGE, as the summary has it; the others stay.",
        "TEXT",
    )
    into: str | None = output_option(
        "The output that the dead letters are of: predictions are put into it, in the order of the input.",
        "OUT",
        callback=in_place_of_output,
    )
    arguments: list[str] = argument("DEAD_LETTERS", "Files or globs of dead letters, of headrace run or retry.")
    """Inputs, mixed with Beam's options."""


@dataclass(frozen=True, kw_only=True)
class DoctorArgs(FileArgs, ModelArgs):
    """Show what Headrace runs on this machine, or what a handler needs on it.

    Without HANDLER or --model: the managers of shared models, with their models, memory, clients and hosts, and what
    killed processes left behind.

    With one of them: loads its model once, as for sharing, and reports what that takes, what each process would need,
    what batches cost (--rows), and where placement='auto' would put the model. Nothing stays behind.

    Exit codes: 0 all is well, 1 something was left behind, or the model fails, 2 a wrong argument or input, 130
    interrupted.
    """

    handler: str | None = argument("HANDLER", _HANDLER_HELP, is_needed=False, autocompletion=handlers_like)
    rows: str | None = input_option("A file of rows, with which batches are measured.", "FILE")
    processes: int | None = report_option(
        "How many worker processes to plan for. By default one for each core.", "COUNT", min=1
    )
    clean: bool = report_option(
        "Remove files of managers, and end hosts, whose owner is gone.", name="--clean", default=False
    )
    as_json: bool = report_option("Print JSON: plain values, in bytes and seconds.", name="--json", default=False)
    verbose: bool = report_option("Show the log, and the traceback of a failure.", name="--verbose", default=False)


@dataclass(frozen=True, kw_only=True)
class HandlersArgs:
    """List the handlers that --handler knows by name: Headrace's, and those of other installed packages.

    With NAME: what that one takes and predicts, its parameters, what to install, and an example.
    """

    name: str | None = argument(
        "NAME", "Describe this one: its parameters, and an example.", is_needed=False, autocompletion=handlers_like
    )
    as_json: bool = option("Print JSON: a list of objects.", name="--json", default=False)
    markdown: bool = option("Print the whole table as Markdown.", name="--markdown", default=False)


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
