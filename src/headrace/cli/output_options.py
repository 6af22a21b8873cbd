"""The options about what is written. Annotations are objects here, as in ``report_options``."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from headrace.cli.option import OUTPUT, option


class OutputFormat(str, Enum):
    """What can go to standard output."""

    jsonl = "jsonl"
    csv = "csv"


@dataclass(frozen=True, kw_only=True)
class OutputArgs:
    """Options of ``headrace run`` and ``headrace retry``."""

    dead_letters: Annotated[
        str | None,
        option(
            "--dead-letters",
            OUTPUT,
            "The file for the dead letters: .jsonl, .csv (both also .gz) or .parquet. By default beside OUT, as JSONL.",
            "FILE",
        ),
    ] = None
    output_format: Annotated[
        OutputFormat | None,
        option("--output-format", OUTPUT, "With --output -: how to write rows. By default as JSON lines."),
    ] = None
    keep: Annotated[
        list[str] | None,
        option(
            "--keep",
            OUTPUT,
            "The columns to write beside the prediction: names or globs. All by default; '' for none.",
            "A,B,'C*'",
        ),
    ] = None
    explode: Annotated[
        bool,
        option(
            "--explode/--no-explode",
            OUTPUT,
            "Write a prediction of several values as several columns: prediction_0, or prediction_NAME where the model "
            "names them, as its classes.",
        ),
    ] = False
