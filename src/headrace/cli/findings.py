"""What ``headrace doctor`` found, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.cli.summary import rate_text

if TYPE_CHECKING:
    from headrace.machine.status import MachineState, ManagerState, ModelState, ProcessState
    from headrace.runtime.profiling import ModelFindings, Profile

Line = tuple[str, str]
"""A name and a text; without a name it continues the line before, without both it is an empty line."""

_CURE = "headrace doctor --clean removes stale files and ends hosts without an owner"


def status_as_json(state: MachineState, cleaned: MachineState | None = None) -> dict[str, Any]:
    """Plain values; bytes and seconds."""
    found = asdict(state)
    found["own_hosts"] = {str(owner): hosts for owner, hosts in found["own_hosts"].items()}
    found["nothing_left_over"] = not state.leftovers
    for one in (*found["managers"], *found["silent"]):
        one["seat"] = one["endpoint"]  # its earlier name
    if cleaned is not None:
        found["cleaned"] = {
            "stale": list(cleaned.stale),
            "orphans": [one.process for one in cleaned.orphans],
            "abandoned": list(cleaned.abandoned),
        }
    return found


def show_status(console: Console, state: MachineState, cleaned: MachineState | None = None) -> None:
    """Prints what Headrace runs on the machine."""
    _show(console, list(_status_lines(state, cleaned)))


def profile_as_json(found: Profile) -> dict[str, Any]:
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


def show_profile(console: Console, found: Profile) -> None:
    """Prints what a handler needs."""
    _show(console, list(_profile_lines(found)))


def _show(console: Console, lines: Sequence[Line]) -> None:
    width = 2 + max(len(name) for name, _ in lines)
    for name, value in lines:
        console.print(f"{name:<{width}}{value}".rstrip(), markup=False, highlight=False, soft_wrap=True)


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
