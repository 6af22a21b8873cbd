"""``headrace doctor``: what Headrace runs on this machine, and what a handler needs here."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.cli.console import Signals, console_logging, report_error, say
from headrace.cli.options import DoctorArgs
from headrace.cli.summary import Line, rate_text
from headrace.core.errors import ConfigurationError, HeadraceError, as_type_name

if TYPE_CHECKING:
    from headrace.cli.recognition import Recognised
    from headrace.machine.status import MachineState, ManagerState, ModelState, ProcessState
    from headrace.runtime.profiling import ModelFindings, Profile

HEALTHY, FAILED, MISUSED = 0, 1, 2

_CURE = "headrace doctor --clean removes stale files and ends hosts without an owner"


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
    return str(next(one.metadata["typer"].param_decls[0] for one in fields(DoctorArgs) if one.name == name))


def _report_status(args: DoctorArgs, out: Console) -> int:
    from headrace.hosts.system import why_no_hosts  # noqa: PLC0415 - not every system has what hosts need

    reason = why_no_hosts()
    if reason is not None:
        raise ConfigurationError(f"models cannot be shared on this machine: {reason}.")
    from headrace.machine.status import clean, machine_status  # noqa: PLC0415 - as above

    state = machine_status()
    cleaned = state if args.clean else None
    if args.clean:
        clean(state)
        state = machine_status()
    if args.as_json:
        say(out, json.dumps(_status_as_json(state, cleaned), indent=2))
    else:
        _show(out, list(_status_lines(state, cleaned)))
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
        from headrace.runtime.profiling import profile_handler, profiling_spec  # noqa: PLC0415 - not every system has what it needs

        spec = profiling_spec(handler, inference_args, batching)
        try:
            found = profile_handler(spec, rows, args.processes)
        except Exception as error:
            hint = about_model(args.handler or "", args.model or "") if args.model else ""
            return _fail(errors, FAILED, error, "the model cannot be loaded: ", hint, verbose=args.verbose)
    found = replace(found, handler=args.handler or "")  # not the wrapper for rows
    if args.as_json:
        say(out, json.dumps(_profile_as_json(found), indent=2))
    else:
        _show(out, list(_profile_lines(found)))
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


def _fail(console: Console, code: int, error: BaseException, what: str = "", hint: str = "", *, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    own_words = isinstance(error, HeadraceError) or (code == MISUSED and isinstance(error, ValueError) and str(error))
    said = str(error) if own_words else f"{as_type_name(error)}: {error}"
    report_error(console, f"{what}{said.rstrip('.') if hint else said}{hint}")
    return code


def _status_as_json(state: MachineState, cleaned: MachineState | None = None) -> dict[str, Any]:
    """Plain values; bytes and seconds."""
    found = asdict(state)
    found["own_hosts"] = {str(owner): hosts for owner, hosts in found["own_hosts"].items()}
    found["nothing_left_over"] = not state.leftovers
    if cleaned is not None:
        found["cleaned"] = {
            "stale": list(cleaned.stale),
            "orphans": [one.process for one in cleaned.orphans],
            "abandoned": list(cleaned.abandoned),
        }
    return found


def _profile_as_json(found: Profile) -> dict[str, Any]:
    """Plain values; bytes and seconds."""
    models = [
        {**asdict(model), "mapped": model.mapped, "costs": [cost._asdict() for cost in model.costs]}
        for model in found.models
    ]
    return {
        **asdict(found),
        "models": models,
        "choice": {"placement": _automatic(found), "why": _why(found)},
        "weights": found.nbytes + found.file_bytes,
        "copy_each": found.copy_each,
        "copy_per_machine": found.copy_per_machine,
    }


def _show(console: Console, lines: Sequence[Line]) -> None:
    width = 2 + max(len(name) for name, _ in lines)
    for name, value in lines:
        say(console, f"{name:<{width}}{value}".rstrip())


def _status_lines(state: MachineState, cleaned: MachineState | None) -> Iterator[Line]:
    yield "runtime directory", state.directory or f"none: {state.problem}"
    if not (state.managers or state.silent):
        yield "managers", "none; one starts when a pipeline shares a model, and ends with the last of them"
    for manager in state.managers:
        yield "", ""
        yield from _manager_lines(manager)
    for silent in state.silent:
        yield f"endpoint {silent.endpoint}", silent.problem
    for owner, hosts in state.own_hosts.items():
        whose = f"hosts of process {owner}" if owner else "hosts of others"
        yield whose, ", ".join(_described(host) for host in hosts)
    if state.managers:
        yield "", ""
    if cleaned is not None:
        removed = [
            *(f"endpoint {name}" for name in cleaned.stale),
            *(f"process {one.process}" for one in cleaned.orphans),
            *(f"file {name}" for name in cleaned.abandoned),
        ]
        yield "cleaned", ", ".join(removed) or "nothing"
    yield from _leftover_lines(state)


def _leftover_lines(state: MachineState) -> Iterator[Line]:
    if not state.leftovers:
        yield "left over", "nothing"
        return
    for name in state.stale:
        yield "left over", f"files of endpoint {name}, whose manager is gone"
    for orphan in state.orphans:
        yield "left over", f"host {_described(orphan)}, whose owner is gone"
    for name in state.abandoned:
        what = "what was spent of a budget" if name.endswith(".budget") else "the limit of an endpoint"
        yield "left over", f"file {name}, {what}, whose processes were killed"
    yield "cure", _CURE


def _manager_lines(manager: ManagerState) -> Iterator[Line]:
    yield "manager", f"{_described(manager.process)}; {_counted(manager.clients, 'client')}"
    yield "  endpoint", manager.endpoint
    for helper in manager.helpers:
        yield "  forks hosts", _described(helper)
    for model in manager.models:
        yield from _model_lines(model)
    if not manager.models:
        yield "  models", "none"


def _model_lines(model: ModelState) -> Iterator[Line]:
    stays = f"; stays {model.linger_secs:g} s when unused" if model.linger_secs else ""
    yield "  model", f"{model.name}: {model.state}, {_bytes(model.nbytes)}, {_counted(model.clients, 'client')}{stays}"
    if model.state == "ready":
        yield "    weights", "mapped" if model.mapped else f"in hosts, since {model.reason}"
    for host in model.hosts:
        yield "    host", _described(host)


def _described(process: ProcessState) -> str:
    if process.pss is None or process.private is None:
        return f"process {process.process}"
    return f"process {process.process} ({_bytes(process.private)} private, {_bytes(process.pss)} PSS)"


def _profile_lines(found: Profile) -> Iterator[Line]:
    yield "handler", f"{found.handler}; asks for placement={found.default!r}{_copies(found)}"
    available, limit = _bytes(found.memory_available), _bytes(found.memory_limit)
    yield "machine", f"{_counted(found.cores, 'core')}; {available} of {limit} of memory available"
    for model in found.models:
        yield from _model_findings(model)
    if found.bad_rows:
        yield "bad rows", f"{found.bad_rows:,} left out; the first: {' '.join(found.bad_row.split())}"
    yield "", ""
    yield f"for {_counted(found.processes, 'process', 'processes')}", ""
    yield "  a copy each", _bytes(found.copy_each)
    yield "  shared", f"{_bytes(found.copy_per_machine)}{_saving(found)}"
    yield "placement='auto'", f"would choose {_automatic(found)!r}: {_why(found)}"
    if found.processes != found.cores and not found.routed:
        asked = found.asked_choice.placement
        yield "", f"for {_counted(found.processes, 'process', 'processes')} the same rule says {asked!r}"


def _model_findings(model: ModelFindings) -> Iterator[Line]:
    yield "", ""
    if model.name:
        yield "model", model.name
    within = "" if model.load_seconds is None else f"{_seconds(model.load_seconds)} in load_model; "
    yield "loading", f"{within}{_seconds(model.ready_seconds)} in all, with starting processes and imports"
    if model.peak is not None:
        yield "  peak", f"{_bytes(model.peak)} in the process that loads, imports included"
    if model.mapped:
        yield "weights", f"can be mapped: {_weights(model)}"
    else:
        yield "weights", f"cannot be mapped, since {model.reason}; {_weights(model, 'a host')}"
    if model.attach_seconds is not None and model.first_attach_seconds is not None:
        first = _seconds(model.first_attach_seconds)
        yield "  attaching", f"{_seconds(model.attach_seconds)} in each process; {first} with this process's imports"
    if model.private is not None:
        yield "  private", f"{_bytes(model.private)} in each process"
    for cost in model.costs:
        rate = f"{rate_text(cost.size / cost.seconds)} rows/s" if cost.seconds else ""
        yield f"batches of {cost.size:,}", f"{_milliseconds(cost.seconds):>14}{rate:>20}"


def _weights(model: ModelFindings, place: str = "shared memory") -> str:
    if not model.file_bytes:
        return f"{_bytes(model.nbytes)} in {place}"
    whole, of_files = _bytes(model.nbytes + model.file_bytes), _bytes(model.file_bytes)
    return f"{whole} ({of_files} in the model's own files, {_bytes(model.nbytes)} in {place})"


def _copies(found: Profile) -> str:
    return f", {found.copies} copies in hosts" if found.copies > 1 else ""


def _automatic(found: Profile) -> str:
    return "machine" if found.routed else found.choice.placement


def _why(found: Profile) -> str:
    files = f"; all share {_bytes(found.file_bytes)} of the model's files" if found.file_bytes else ""
    return "models by key are shared, each for itself" if found.routed else f"{found.choice.why}{files}"


def _saving(found: Profile) -> str:
    return "" if found.copy_per_machine < found.copy_each else "; sharing saves no memory"


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else _milliseconds(seconds)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"
