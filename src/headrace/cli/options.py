"""The options of ``headrace run``, ``retry`` and ``doctor``, in the groups in which its help shows them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

_INPUT, _MODEL, _OUTPUT, _RUN = "Input", "Model", "Output", "Running"
_DOCTOR = "Examination"


class FileFormat(str, Enum):
    """What files of rows can be."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


class PlacementName(str, Enum):
    """Where a model can live."""

    process = "process"
    machine = "machine"
    auto = "auto"


Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Files or globs ('data/*.jsonl'): local, or of any filesystem of Beam."),
]
Letters = Annotated[
    list[str],
    typer.Argument(
        metavar="DEAD_LETTERS", help="Files or globs of dead letters (.jsonl or .parquet), of headrace run or retry."
    ),
]
Handler = Annotated[
    str,
    typer.Option(
        "--handler",
        metavar="NAME",
        rich_help_panel=_MODEL,
        help="An installed handler (sklearn-numpy, ...), or package.module:factory; the current folder is importable.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="URI",
        rich_help_panel=_MODEL,
        help="Where the model is: a path, a URI, or an id on a hub, as the handler takes it.",
    ),
]
HandlerArg = Annotated[
    list[str] | None,
    typer.Option(
        "--handler-arg",
        metavar="KEY=VALUE",
        rich_help_panel=_MODEL,
        help="A parameter of the handler, as JSON or text. Repeatable.",
    ),
]
InferenceArg = Annotated[
    list[str] | None,
    typer.Option(
        "--inference-arg",
        metavar="KEY=VALUE",
        rich_help_panel=_MODEL,
        help="An argument of the model's call, as JSON or text. Repeatable.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="COLUMN",
        rich_help_panel=_MODEL,
        help="The column of the key, for a handler of keyed examples.",
    ),
]
MinBatchSize = Annotated[
    int | None,
    typer.Option("--min-batch-size", rich_help_panel=_MODEL, help="Rows a batch at least, but for the last one."),
]
MaxBatchSize = Annotated[
    int | None, typer.Option("--max-batch-size", rich_help_panel=_MODEL, help="Rows a batch at most.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="A,B,'C*'",
        rich_help_panel=_INPUT,
        help="The columns that the model sees: names or globs. All by default.",
    ),
]
Format = Annotated[
    FileFormat | None,
    typer.Option("--format", rich_help_panel=_INPUT, help="Of the inputs; their extensions tell by default."),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter",
        metavar="CHARACTER",
        rich_help_panel=_INPUT,
        help="Of CSV files; a comma by default, a tab for .tsv.",
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--text-columns",
        metavar="A,B,'C*'",
        rich_help_panel=_INPUT,
        help="Columns of CSV files that stay text though they look like numbers.",
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        metavar="OUT",
        rich_help_panel=_OUTPUT,
        help="The file for the predictions: .jsonl, .jsonl.gz or .parquet.",
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters",
        metavar="FILE",
        rich_help_panel=_OUTPUT,
        help="The file for the dead letters: .jsonl, .jsonl.gz or .parquet. By default beside OUT, as JSONL.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="A,B,'C*'",
        rich_help_panel=_OUTPUT,
        help="The columns that stand beside the prediction: names or globs. All by default; '' for none.",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="SHARE",
        rich_help_panel=_RUN,
        help="The share of rows, 0 to 1, that may fail. If more do, or by default all, OUT is not written.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        rich_help_panel=_RUN,
        help="Keep what is done if the run fails, is interrupted or killed; the same command then goes on from there.",
    ),
]
Runner = Annotated[
    str | None,
    typer.Option(
        "--runner",
        metavar="NAME",
        rich_help_panel=_RUN,
        help="Beam's runner. By default none: this process runs the rows, without Beam.",
    ),
]
Placement = Annotated[
    PlacementName | None,
    typer.Option(
        "--placement",
        rich_help_panel=_RUN,
        help="A model for each worker process, or one for the machine; auto: one if memory is short. By default as "
        "the handler says.",
    ),
]
Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate",
        rich_help_panel=_RUN,
        help="Run the model in a process of its own: a row that crashes it costs that row only.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        rich_help_panel=_RUN,
        help="The longest that a batch, or loading the model, may take; rows that hang go to the dead letters.",
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", rich_help_panel=_RUN, help="Show only the summary.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", rich_help_panel=_RUN, help="Show Beam's log, and the traceback of a failure.")
]

Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="HANDLER",
        help="An installed handler (sklearn-numpy, ...), or package.module:factory; the current folder is importable.",
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--rows", metavar="FILE", rich_help_panel=_INPUT, help="A file of rows, with which batches are measured."
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="COUNT",
        rich_help_panel=_DOCTOR,
        help="How many worker processes to reckon with. By default one for each core.",
    ),
]
Clean = Annotated[
    bool,
    typer.Option(
        "--clean", rich_help_panel=_DOCTOR, help="Remove files of managers, and end hosts, whose owner is gone."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=_DOCTOR, help="Print JSON: plain values, in bytes and seconds.")
]
DoctorVerbose = Annotated[
    bool,
    typer.Option(
        "--verbose", rich_help_panel=_DOCTOR, help="Show what is logged meanwhile, and the traceback of a failure."
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the whole table as Markdown.")]
