"""``--output -``: predictions go to standard output once all rows are done, and nothing else does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.cli.errors import report_error
from headrace.cli.output_options import OutputFormat
from headrace.core.errors import ConfigurationError
from headrace.core.files import is_folder_name

if TYPE_CHECKING:
    from headrace.cli.options import RetryArgs, RunArgs
    from headrace.cli.record import RunRecord

SIGN = "-"
NAME = "standard output"


@contextmanager
def in_a_file(args: RunArgs | RetryArgs) -> Iterator[RunArgs | RetryArgs]:
    """The options, with a file in a temporary folder in place of standard output."""
    if args.output != SIGN or _mistake(args) is not None:
        yield args
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        kind = args.output_format.value if args.output_format else "jsonl"
        yield replace(args, output=os.path.join(folder, f"predictions.{kind}"), output_format=None)


def refuse_mistakes(args: RunArgs | RetryArgs) -> None:
    """Raises ConfigurationError if standard output cannot be used as the options ask."""
    if (mistake := _mistake(args)) is not None:
        raise ConfigurationError(mistake)


def _mistake(args: RunArgs | RetryArgs) -> str | None:
    if args.output != SIGN:
        has_use = args.output_format is None or is_folder_name(args.output)
        return None if has_use else "--output-format is for --output - or FOLDER/; elsewhere the name decides."
    if args.output_format is OutputFormat.parquet:
        return "--output - takes no Parquet, which is written from its end: name a file, or another --output-format."
    if args.dead_letters is None:
        return "--output - needs --dead-letters FILE: there is no output beside which they could be."
    if args.resume:
        return "--output - keeps nothing that a later run could go on from; leave --resume out, or name a file."
    return "--json prints on standard output, as --output - does; leave one of them out." if args.as_json else None


def send(path: str | None, record: RunRecord) -> bool:
    """Copies a file to standard output; returns whether that takes all, and if not says so."""
    out = record.out.buffer
    try:
        with open(str(path), "rb") as file:
            shutil.copyfileobj(file, out)
        out.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # what is left would be written when it is closed
        report_error(record.errors, f"{NAME} did not take all predictions: {error.strerror or error}.")
        return False
    return True
