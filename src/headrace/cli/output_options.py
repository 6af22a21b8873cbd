"""The options about what is written. Annotations are objects here, as in ``report_options``."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from headrace.cli.option import OUTPUT, option


class OutputFormat(str, Enum):
    """What can go to standard output, or into a folder."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


@dataclass(frozen=True, kw_only=True)
class OutputArgs:
    """Options of ``headrace run`` and ``headrace retry``."""

    dead_letters: Annotated[
        str | None,
        option(
            "--dead-letters",
            OUTPUT,
            "The file for the dead letters: .jsonl, .csv (both also .gz) or .parquet; or a FOLDER/ of them. By default "
            "beside OUT, as JSONL.",
            "FILE",
        ),
    ] = None
    output_format: Annotated[
        OutputFormat | None,
        option(
            "--output-format",
            OUTPUT,
            "How to write rows with --output -, by default as JSON lines, or FOLDER/, by default as each input.",
        ),
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
