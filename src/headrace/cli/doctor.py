"""``headrace doctor``: what there is on this machine, and what a handler needs on it."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from headrace.cli.errors import orderly, report_error
from headrace.cli.signals import Signals
from headrace.core.errors import ConfigurationError, HeadraceError, as_type_name

HEALTHY, FAILED, MISUSED = 0, 1, 2


@dataclass(frozen=True)
class DoctorWords:
    """The command line, as it was typed."""

    handler: str | None
    model: str | None = None
    handler_args: Sequence[str] = ()
    inference_args: Sequence[str] = ()
    key: str | None = None
    max_batch_size: int | None = None
    rows: str | None = None
    columns: Sequence[str] | None = None
    text_columns: Sequence[str] | None = None
    file_format: str | None = None
    delimiter: str | None = None
    processes: int | None = None
    clean: bool = False
    as_json: bool = False
    verbose: bool = False


def consult(words: DoctorWords) -> int:
    """Looks; returns the exit code."""
    errors, out = Console(stderr=True), Console()
    with orderly(errors, verbose=words.verbose), Signals() as signals:
        try:
            _refuse_stray_words(words)
            return _look_around(words, out) if words.handler is None else _examine(words, errors, out)
        except (KeyboardInterrupt, Exception) as error:
            if signals.received:
                report_error(errors, "interrupted.")
                return signals.exit_code
            return _fail(errors, MISUSED, error, verbose=words.verbose)


def _refuse_stray_words(words: DoctorWords) -> None:
    if words.handler is None:
        needless = DoctorWords(None, clean=words.clean, as_json=words.as_json, verbose=words.verbose)
        stray = [name for name, value in asdict(words).items() if (value or None) != (getattr(needless, name) or None)]
        if stray:
            raise ConfigurationError(f"{_option(stray[0])} is about a handler; name one: headrace doctor HANDLER.")
        return
    if words.clean:
        raise ConfigurationError("--clean is about the machine; leave HANDLER out.")
    if words.processes is not None and words.processes < 1:
        raise ConfigurationError(f"--processes must be at least 1, not {words.processes}.")
    for name in ("columns", "text_columns", "file_format", "delimiter", "key"):
        if getattr(words, name) and not words.rows:
            raise ConfigurationError(f"{_option(name)} is about rows; name a file of them with --rows.")


def _option(name: str) -> str:
    plain = {"file_format": "format", "handler_args": "handler-arg", "inference_args": "inference-arg"}
    return "--" + plain.get(name, name).replace("_", "-")


def _look_around(words: DoctorWords, out: Console) -> int:
    from headrace.hosting.system import why_no_hosts  # noqa: PLC0415 - what follows needs what not every system has

    reason = why_no_hosts()
    if reason is not None:
        raise ConfigurationError(f"models cannot be shared on this machine: {reason}.")
    from headrace.cli.findings import census_as_json, show_census  # noqa: PLC0415 - as above
    from headrace.hosting.census import clean, take_census  # noqa: PLC0415 - as above

    state = take_census()
    cleaned = state if words.clean else None
    if words.clean:
        clean(state)
        state = take_census()
    if words.as_json:
        _print_json(out, census_as_json(state, cleaned))
    else:
        show_census(out, state, cleaned)
    return FAILED if state.leftovers or state.problem else HEALTHY


def _examine(words: DoctorWords, errors: Console, out: Console) -> int:
    from headrace.cli.handlers import make_handler, parse_arguments  # noqa: PLC0415 - only where there is a handler

    inference_args = parse_arguments("--inference-arg", words.inference_args) or None
    with errors.status("loading the model") if errors.is_terminal else nullcontext():
        handler = make_handler(words.handler or "", parse_arguments("--handler-arg", words.handler_args), words.model)
        handler, batching, rows = (
            _over_rows(handler, words) if words.rows else (handler, _batching(handler, words), None)
        )
        from headrace.cli.findings import examination_as_json, show_examination  # noqa: PLC0415 - as below
        from headrace.runtime.examination import examine, subject  # noqa: PLC0415 - not every system has what it needs

        spec = subject(handler, inference_args, batching)
        try:
            found = examine(spec, rows, words.processes)
        except Exception as error:
            return _fail(errors, FAILED, error, "the model cannot be loaded: ", verbose=words.verbose)
    found = replace(found, handler=words.handler or "")  # not that of rows, which is ours
    if words.as_json:
        _print_json(out, examination_as_json(found))
    else:
        show_examination(out, found)
    troubles = [f"{model.name}: {model.trouble}".removeprefix(": ") for model in found.models if model.trouble]
    for trouble in troubles:
        report_error(errors, trouble)
    return FAILED if troubles else HEALTHY


def _batching(handler: Any, words: DoctorWords) -> Any:
    """What the handler asks for, with the size that is asked for here; None: no more than that."""
    if words.max_batch_size is None:
        return None
    from headrace.core.config import BatchingConfig  # noqa: PLC0415 - only where it is needed

    return BatchingConfig.from_kwargs(
        {**handler.batch_elements_kwargs(), "max_batch_size": words.max_batch_size}, handler
    )


def _over_rows(handler: Any, words: DoctorWords) -> tuple[Any, Any, Iterator[Any]]:
    """A handler of rows, its batching, and the rows, as ``headrace run`` has them."""
    from headrace.beam.job import files, reading  # noqa: PLC0415 - importing Beam takes seconds
    from headrace.beam.job.rows import Examples, batching_over_rows, over_rows  # noqa: PLC0415 - as above
    from headrace.cli.columns import choose  # noqa: PLC0415 - only where there are rows

    assert words.rows is not None
    sources = files.match([words.rows], words.file_format, words.delimiter)
    head = reading.peek(sources)
    text = choose("--text-columns", words.text_columns, head.columns) or ()
    key = choose("--key", [words.key] if words.key else None, head.columns)
    examples = Examples(choose("--columns", words.columns, head.columns), head.columns, key[0] if key else None)
    numbers = {name: kind for name, kind in head.numbers.items() if name not in text}
    sizes = {} if words.max_batch_size is None else {"max_batch_size": words.max_batch_size}
    rows = (row for source in sources for row in reading.read_rows(source, numbers))
    return over_rows(handler, examples), batching_over_rows(handler, sizes), rows


def _print_json(out: Console, value: dict[str, Any]) -> None:
    out.print(json.dumps(value, indent=2), markup=False, highlight=False, soft_wrap=True)


def _fail(console: Console, code: int, error: BaseException, what: str = "", *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    own_words = isinstance(error, HeadraceError) or (code == MISUSED and isinstance(error, ValueError) and str(error))
    report_error(console, what + (str(error) if own_words else f"{as_type_name(error)}: {error}"))
    return code
