"""``headrace doctor``: what Headrace runs on this machine, and what a handler needs here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.cli.console import ExitCode, Signals, console_logging, error_text, fail, report_error, say
from headrace.cli.display import Line, rate_text, show
from headrace.cli.option import names_of
from headrace.cli.options import DoctorArgs
from headrace.core.answer import counted
from headrace.core.errors import ConfigurationError, HeadraceError, as_type_name
from headrace.metrics.report_parts import seconds_text
from headrace.models.admission import format_bytes

if TYPE_CHECKING:
    from headrace.cli.recognition import Recognised
    from headrace.machine.status import MachineState, ModelState, ProcessState
    from headrace.runtime.profiling import ModelFindings, Profile


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
            return fail(errors, ExitCode.WRONG_ARGUMENT, error_text(error), error, verbose=args.verbose)


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
    return next(names_of(one)[0] for one in fields(DoctorArgs) if one.name == name)


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
        show(out, list(_status_lines(state, cleaned)))
    return ExitCode.FAILED if state.leftovers or state.problem else ExitCode.DONE


def _report_profile(args: DoctorArgs, errors: Console, out: Console) -> int:
    from headrace.cli.handlers import parse_arguments  # noqa: PLC0415 - only where there is a handler
    from headrace.cli.recognition import about_model, handler_of, recognised  # noqa: PLC0415 - as above

    args, known = recognised(args)
    inference_args = parse_arguments("--inference-arg", args.inference_args) or None
    with errors.status("loading the model") if errors.is_terminal else nullcontext():
        made = handler_of(args, known)
        from headrace.rows.examples import batching_over_rows  # noqa: PLC0415 - importing numpy takes a while

        handler, rows = _over_rows(made, args, known) if args.rows else (made, None)
        sizes = {} if args.max_batch_size is None else {"max_batch_size": args.max_batch_size}
        batching = batching_over_rows(made, sizes) if sizes or args.rows else None
        from headrace.runtime.profiling import profile_handler, profiling_spec  # noqa: PLC0415 - not every system has what it needs

        spec = profiling_spec(handler, inference_args, batching)
        try:
            found = profile_handler(spec, rows, args.processes)
        except Exception as error:
            hint = about_model(args.handler or "", args.model) if args.model else ""
            said = str(error) if isinstance(error, HeadraceError) else f"{as_type_name(error)}: {error}"
            said = f"the model cannot be loaded: {said.rstrip('.') if hint else said}{hint}"
            return fail(errors, ExitCode.FAILED, said, error, verbose=args.verbose)
    found = replace(found, handler=args.handler or "")  # not the wrapper for rows
    if args.as_json:
        say(out, json.dumps(_profile_as_json(found), indent=2))
    else:
        show(out, list(_profile_lines(found)))
    troubles = [f"{model.name}: {model.trouble}".removeprefix(": ") for model in found.models if model.trouble]
    for trouble in troubles:
        report_error(errors, trouble)
    return ExitCode.FAILED if troubles else ExitCode.DONE


def _over_rows(handler: Any, args: DoctorArgs, known: Recognised | None) -> tuple[Any, Iterator[Any]]:
    """A handler of rows, and the rows, as in ``headrace run``."""
    from headrace.cli.prepare import columns_of, contents_of, examples_of, schema_of  # noqa: PLC0415 - only where there are rows
    from headrace.jobs import files, reading  # noqa: PLC0415 - as above
    from headrace.rows.examples import over_rows  # noqa: PLC0415 - as above

    assert args.rows is not None
    sources = files.match([args.rows], args.file_format, args.delimiter)
    head = schema_of(args, sources)
    columns = columns_of(args, handler, head, known)
    contents = contents_of(args, head, columns)
    rows = (row for source in sources for row in reading.read_rows(source, head.csv))
    rows = rows if contents is None else (row for row, _ in contents.of((row, None) for row in rows))
    return over_rows(handler, examples_of(args, head, columns)), rows


def _status_as_json(state: MachineState, cleaned: MachineState | None = None) -> dict[str, Any]:
    found = asdict(state)
    found["own_hosts"] = {str(owner): hosts for owner, hosts in found["own_hosts"].items()}
    found["nothing_left_over"] = not state.leftovers
    found["beam"] = {"version": version("apache-beam")}
    if cleaned is not None:
        found["cleaned"] = {
            "stale": list(cleaned.stale),
            "orphans": [one.process for one in cleaned.orphans],
            "abandoned": list(cleaned.abandoned),
        }
    return found


def _profile_as_json(found: Profile) -> dict[str, Any]:
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


def _status_lines(state: MachineState, cleaned: MachineState | None) -> Iterator[Line]:
    yield "Beam", version("apache-beam")
    yield "runtime directory", state.directory or f"none: {state.problem}"
    if not (state.managers or state.silent):
        yield "managers", "none; one starts when a pipeline shares a model, and ends with the last of them"
    for manager in state.managers:
        yield "", ""
        yield "manager", f"{_described(manager.process)}; {counted(manager.clients, 'client')}"
        yield "  endpoint", manager.endpoint
        yield from (("  forks hosts", _described(helper)) for helper in manager.helpers)
        for model in manager.models:
            yield from _model_lines(model)
        if not manager.models:
            yield "  models", "none"
    yield from ((f"endpoint {silent.endpoint}", silent.problem) for silent in state.silent)
    for owner, hosts in state.own_hosts.items():
        yield f"hosts of {f'process {owner}' if owner else 'others'}", ", ".join(map(_described, hosts))
    yield "", ""
    if cleaned is not None:
        removed = [(cleaned.stale, "endpoint"), ([one.process for one in cleaned.orphans], "process")]
        names = [f"{kind} {name}" for some, kind in [*removed, (cleaned.abandoned, "file")] for name in some]
        yield "cleaned", ", ".join(names) or "nothing"
    for leftover in list(_leftovers(state)) or ["nothing"]:
        yield "left over", leftover
    if state.leftovers:
        yield "cure", "headrace doctor --clean removes stale files and ends hosts without an owner"


def _leftovers(state: MachineState) -> Iterator[str]:
    yield from (f"files of endpoint {name}, whose manager is gone" for name in state.stale)
    yield from (f"host {_described(orphan)}, whose owner is gone" for orphan in state.orphans)
    for name in state.abandoned:
        what = "what was spent of a budget" if name.endswith(".budget") else "the limit of an endpoint"
        yield f"file {name}, {what}, whose processes were killed"


def _model_lines(model: ModelState) -> Iterator[Line]:
    stays = f"; stays {model.linger_secs:g} s when unused" if model.linger_secs else ""
    yield (
        "  model",
        f"{model.name}: {model.state}, {format_bytes(model.nbytes)}, {counted(model.clients, 'client')}{stays}",
    )
    if model.state == "ready":
        yield "    weights", "mapped" if model.mapped else f"in hosts, since {model.reason}"
    yield from (("    host", _described(host)) for host in model.hosts)


def _described(process: ProcessState) -> str:
    if process.pss is None or process.private is None:
        return f"process {process.process}"
    return f"process {process.process} ({format_bytes(process.private)} private, {format_bytes(process.pss)} PSS)"


def _profile_lines(found: Profile) -> Iterator[Line]:
    copies = f", {found.copies} copies in hosts" if found.copies > 1 else ""
    yield "handler", f"{found.handler}; asks for placement={found.default!r}{copies}"
    available, limit = format_bytes(found.memory_available), format_bytes(found.memory_limit)
    yield "machine", f"{counted(found.cores, 'core')}; {available} of {limit} of memory available"
    for model in found.models:
        yield "", ""
        yield from _model_findings(model)
    if found.bad_rows:
        yield "bad rows", f"{found.bad_rows:,} left out; the first: {' '.join(found.bad_row.split())}"
    yield "", ""
    yield f"for {found.processes:,} process{'es' * (found.processes != 1)}", ""
    yield "  a copy each", format_bytes(found.copy_each)
    saving = "" if found.copy_per_machine < found.copy_each else "; sharing saves no memory"
    yield "  shared", f"{format_bytes(found.copy_per_machine)}{saving}"
    yield "placement='auto'", f"would choose {_automatic(found)!r}: {_why(found)}"
    if found.processes != found.cores and not found.routed:
        yield "", f"for as many processes as above the same rule says {found.asked_choice.placement!r}"


def _model_findings(model: ModelFindings) -> Iterator[Line]:
    if model.name:
        yield "model", model.name
    within = "" if model.load_seconds is None else f"{seconds_text(model.load_seconds)} in load_model; "
    yield "loading", f"{within}{seconds_text(model.ready_seconds)} in all, with starting processes and imports"
    if model.peak is not None:
        yield "  peak", f"{format_bytes(model.peak)} in the process that loads, imports included"
    place = "shared memory" if model.mapped else "a host"
    of_files = f", and {format_bytes(model.file_bytes)} in the model's own files" if model.file_bytes else ""
    how = "can be mapped: " if model.mapped else f"cannot be mapped, since {model.reason}; "
    yield "weights", f"{how}{format_bytes(model.nbytes)} in {place}{of_files}"
    if model.attach_seconds is not None and model.first_attach_seconds is not None:
        first = seconds_text(model.first_attach_seconds)
        yield (
            "  attaching",
            f"{seconds_text(model.attach_seconds)} in each process; {first} with this process's imports",
        )
    if model.private is not None:
        yield "  private", f"{format_bytes(model.private)} in each process"
    for cost in model.costs:
        rate = f"{rate_text(cost.size / cost.seconds)} rows/s" if cost.seconds else ""
        yield f"batches of {cost.size:,}", f"{seconds_text(cost.seconds):>14}{rate:>20}"


def _automatic(found: Profile) -> str:
    return "machine" if found.routed else found.choice.placement


def _why(found: Profile) -> str:
    files = f"; all share {format_bytes(found.file_bytes)} of the model's files" if found.file_bytes else ""
    return "models by key are shared, each for itself" if found.routed else f"{found.choice.why}{files}"
