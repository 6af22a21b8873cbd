"""The options about files of rows. Annotations are objects here, as in ``report_options``."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from headrace.cli.option import INPUT, RUN, count, option


class FileFormat(str, Enum):
    """What files of rows can be; of ``files`` each is a row."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"
    files = "files"


@dataclass(frozen=True, kw_only=True)
class TypeArgs:
    """Options of commands that read rows, or dead letters of them."""

    types: Annotated[
        list[str] | None,
        option(
            "--types",
            INPUT,
            "Types of the columns of CSV files: str, int, float, bool, date, datetime or json. By default the first "
            "1,000 rows decide.",
            "A=TYPE,'C*=TYPE'",
        ),
    ] = None
    decode: Annotated[
        str | None,
        option(
            "--decode",
            INPUT,
            "With --format files: makes the column content of a file's bytes, on the threads that read.",
            "MODULE:FUNCTION",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FileArgs(TypeArgs):
    """Options of commands that read files of rows."""

    text_columns: Annotated[
        list[str] | None,
        option("--text-columns", INPUT, "Columns of CSV files that stay text: --types A=str.", "A,B,'C*'"),
    ] = None
    file_format: Annotated[
        FileFormat | None,
        option(
            "--format",
            INPUT,
            "Format of the inputs; by default their extensions decide. files: each file is a row of path, size and "
            "modified, and of its content if --columns names it.",
        ),
    ] = None
    delimiter: Annotated[
        str | None,
        option("--delimiter", INPUT, "Delimiter of CSV files; by default a comma, or a tab for .tsv.", "CHARACTER"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorkerArgs:
    """Who reads the files."""

    workers: Annotated[
        int | None,
        option(
            "--workers",
            RUN,
            "How many processes of this machine share the rows; auto: as many as it has room for.",
            "COUNT",
            parser=count,
        ),
    ] = 1
