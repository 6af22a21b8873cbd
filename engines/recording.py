"""Handlers that write down what they do and where, into the folder that HEADRACE_RECORDS names: for Headrace and Beam.

It is imported where models live, so it imports neither Beam nor a framework.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = "HEADRACE_RECORDS"
_TASK_MANAGER = "HEADRACE_TASK_MANAGER"
_SAMPLING_SECS = 0.5
"""Between two looks at this process's memory, each of which takes milliseconds."""
_last_sample = 0.0


class Recorded:
    """To be mixed in before a handler's class; ``delay_secs`` makes each batch take that much longer."""

    delay_secs = 0.0

    def load_model(self) -> Any:
        """As the handler does."""
        began = time.monotonic()
        model = super().load_model()
        write("load", seconds=time.monotonic() - began)
        return model

    def run_inference(self, batch: Sequence[Any], model: Any, inference_args: Any = None) -> Iterable[Any]:
        """As the handler does, at once."""
        time.sleep(self.delay_secs)
        predictions = list(super().run_inference(batch, model, inference_args))
        write("batch", elements=len(batch), **_memory())
        return predictions


def timed_setup(setup: Callable[..., None]) -> Callable[..., None]:
    """A DoFn's ``setup`` whose time is written down: in it a worker process gets its model."""

    @functools.wraps(setup)
    def timed(self: Any) -> None:
        began = time.monotonic()
        setup(self)
        write("setup", seconds=time.monotonic() - began)

    return timed


def write(what: str, **facts: Any) -> None:
    """Adds a line to this process's file; one that is killed has lost none."""
    line = json.dumps({"what": what, "when": time.time(), "task_manager": os.environ.get(_TASK_MANAGER), **facts})
    with suppress(FileNotFoundError), Path(os.environ[RECORDS], f"{os.getpid()}.jsonl").open("a") as file:
        file.write(f"{line}\n")


def _memory() -> dict[str, int]:
    global _last_sample  # noqa: PLW0603 - a process has one memory
    if time.monotonic() - _last_sample < _SAMPLING_SECS:
        return {}
    _last_sample = time.monotonic()
    with suppress(OSError):
        fields = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()]
        return {"pss": next(int(field[1]) * 1024 for field in fields if field[0] == "Pss:")}
    return {}


@dataclass
class Process:
    """What one process has done."""

    pid: int
    task_manager: str
    elements: int
    loads: int
    load_secs: float
    setups: list[float]
    """Seconds that each DoFn waited for its model."""
    pss: int
    """Bytes, the most that was seen."""


def read(folder: Path) -> list[Process]:
    """All processes that have written anything, by task manager and pid."""
    found = []
    for path in folder.glob("*.jsonl"):
        by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not lines:  # one that begins just now
            continue
        for line in lines:
            by_kind[line["what"]].append(line)
        found.append(
            Process(
                int(path.stem),
                str(lines[0]["task_manager"]),
                sum(line["elements"] for line in by_kind["batch"]),
                len(by_kind["load"]),
                sum(line["seconds"] for line in by_kind["load"]),
                [line["seconds"] for line in by_kind["setup"]],
                max((line.get("pss", 0) for line in by_kind["batch"]), default=0),
            )
        )
    return sorted(found, key=lambda process: (process.task_manager, process.pid))


def table(processes: Iterable[Process]) -> str:
    """One line for each."""
    lines = ["| pid | task manager | elements | loads | load, s | model had, ms (median) | PSS, MB |", "|-" * 7 + "|"]
    for one in processes:
        setups = sorted(one.setups)
        attach = f"{setups[len(setups) // 2] * 1000:.0f} ({len(setups)} times)" if setups else "-"
        load = f"{one.load_secs:.2f}" if one.loads else "-"
        pss = f"{one.pss / 1e6:.0f}" if one.pss else "-"
        lines.append(f"| {one.pid} | {one.task_manager} | {one.elements} | {one.loads} | {load} | {attach} | {pss} |")
    return "\n".join(lines)
