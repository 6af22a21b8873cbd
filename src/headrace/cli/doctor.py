"""``headrace doctor``: what Headrace runs on this machine, and what a handler needs here."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.cli.errors import console_logging, report_error
from headrace.cli.options import DoctorArgs
from headrace.cli.signals import Signals
from headrace.core.errors import ConfigurationError, HeadraceError, as_type_name

if TYPE_CHECKING:
    from headrace.cli.recognition import Recognised

HEALTHY, FAILED, MISUSED = 0, 1, 2


def run_doctor(args: DoctorArgs) -> int:
    """Reports; returns the exit code."""
    errors, out = Console(stderr=True), Console()
    with console_logging(errors, verbose=args.verbose), Signals() as signals:
        try:
            _refuse_stray_options(args)
            if args.handler is None and args.model is None:
                return _report_status(args, out)
            return _report_profile(args, errors, out)
        except (KeyboardInterrupt, Exception) as error:
            if signals.received:
                report_error(errors, "interrupted.")
                return signals.exit_code
            return _fail(errors, MISUSED, error, verbose=args.verbose)


def _refuse_stray_options(args: DoctorArgs) -> None:
    if args.handler is None and args.model is None:
        alone = ("clean", "as_json", "verbose")
        stray = [name for name, value in asdict(args).items() if value and name not in alone]
        if stray:
            raise ConfigurationError(f"{_option(stray[0])} is about a model; name it: headrace doctor --model FILE.")
        return
    if args.clean:
        raise ConfigurationError("--clean is about the machine; leave HANDLER and --model out.")
    for name in ("columns", "decode", "types", "text_columns", "file_format", "delimiter", "key"):
        if getattr(args, name) and not args.rows:
            raise ConfigurationError(f"{_option(name)} is about rows; name a file of them with --rows.")


def _option(name: str) -> str:
    plain = {"file_format": "format", "handler_args": "handler-arg", "inference_args": "inference-arg"}
    return "--" + plain.get(name, name).replace("_", "-")


def _report_status(args: DoctorArgs, out: Console) -> int:
    from headrace.hosts.system import why_no_hosts  # noqa: PLC0415 - not every system has what hosts need

    reason = why_no_hosts()
    if reason is not None:
        raise ConfigurationError(f"models cannot be shared on this machine: {reason}.")
    from headrace.cli.findings import show_status, status_as_json  # noqa: PLC0415 - as above
    from headrace.machine.status import clean, machine_status  # noqa: PLC0415 - as above

    state = machine_status()
    cleaned = state if args.clean else None
    if args.clean:
        clean(state)
        state = machine_status()
    if args.as_json:
        _print_json(out, status_as_json(state, cleaned))
    else:
        show_status(out, state, cleaned)
    return FAILED if state.leftovers or state.problem else HEALTHY


def _report_profile(args: DoctorArgs, errors: Console, out: Console) -> int:
    from headrace.cli.handlers import make_handler, parse_arguments  # noqa: PLC0415 - only where there is a handler
    from headrace.cli.recognition import about_model, recognised  # noqa: PLC0415 - as above

    args, known = recognised(args)
    inference_args = parse_arguments("--inference-arg", args.inference_args) or None
    with errors.status("loading the model") if errors.is_terminal else nullcontext():
        arguments = parse_arguments("--handler-arg", args.handler_args)
        parameter = known.model.path_parameter if known else None
        made = make_handler(args.handler or "", arguments, args.model, model_parameter=parameter)
        handler, batching, rows = _over_rows(made, args, known) if args.rows else (made, _batching(made, args), None)
        from headrace.cli.findings import profile_as_json, show_profile  # noqa: PLC0415 - as below
        from headrace.runtime.profiling import profile_handler, profiling_spec  # noqa: PLC0415 - not every system has what it needs

        spec = profiling_spec(handler, inference_args, batching)
        try:
            found = profile_handler(spec, rows, args.processes)
        except Exception as error:
            hint = about_model(args.handler or "", args.model or "") if args.model else ""
            return _fail(errors, FAILED, error, "the model cannot be loaded: ", hint, verbose=args.verbose)
    found = replace(found, handler=args.handler or "")  # not the wrapper for rows
    if args.as_json:
        _print_json(out, profile_as_json(found))
    else:
        show_profile(out, found)
    troubles = [f"{model.name}: {model.trouble}".removeprefix(": ") for model in found.models if model.trouble]
    for trouble in troubles:
        report_error(errors, trouble)
    return FAILED if troubles else HEALTHY


def _batching(handler: Any, args: DoctorArgs) -> Any:
    """The handler's batching with ``--max-batch-size``; None: the handler's own."""
    if args.max_batch_size is None:
        return None
    from headrace.rows.examples import batching_over_rows  # noqa: PLC0415 - only where it is needed

    return batching_over_rows(handler, {"max_batch_size": args.max_batch_size})


def _over_rows(handler: Any, args: DoctorArgs, known: Recognised | None) -> tuple[Any, Any, Iterator[Any]]:
    """A handler of rows, its batching, and the rows, as in ``headrace run``."""
    from headrace.cli.inputs import columns_of, contents_of, examples_of, schema_of  # noqa: PLC0415 - only where there are rows
    from headrace.jobs import files, reading  # noqa: PLC0415 - as above
    from headrace.rows.examples import batching_over_rows, over_rows  # noqa: PLC0415 - as above

    assert args.rows is not None
    sources = files.match([args.rows], args.file_format and args.file_format.value, args.delimiter)
    head = schema_of(args, sources)
    columns = columns_of(args, handler, head, known)
    contents = contents_of(args, head, columns)
    sizes = {} if args.max_batch_size is None else {"max_batch_size": args.max_batch_size}
    rows = (row for source in sources for row in reading.read_rows(source, head.csv))
    rows = rows if contents is None else (row for row, _ in contents.of((row, None) for row in rows))
    return over_rows(handler, examples_of(args, head, columns)), batching_over_rows(handler, sizes), rows


def _print_json(out: Console, value: dict[str, Any]) -> None:
    out.print(json.dumps(value, indent=2), markup=False, highlight=False, soft_wrap=True)


def _fail(console: Console, code: int, error: BaseException, what: str = "", hint: str = "", *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    own_words = isinstance(error, HeadraceError) or (code == MISUSED and isinstance(error, ValueError) and str(error))
    said = str(error) if own_words else f"{as_type_name(error)}: {error}"
    report_error(console, f"{what}{said.rstrip('.') if hint else said}{hint}")
    return code
