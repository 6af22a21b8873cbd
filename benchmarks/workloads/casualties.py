"""What one element that hangs or kills the model's process costs the others: facts, with rough times."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elsewhere.casualty import BATCH, COUNT, FAULTS
from measure import BEAM, HEADRACE
from processes import run_to_the_end

TITLE = f"One bad element among {COUNT}, in batches of {BATCH}"

_LIMIT_SECS = 60

ABOUT = f"""\
Each line is a pipeline with exception handling on the FnApiRunner, in a process of its own. *Pipeline s* is from its
submission to its end. *Lost* are elements that have neither a prediction nor a dead letter when it has ended; what came
out before a crash is counted, though no runner would keep it. A process that is still there {_LIMIT_SECS} s after its
start, imports included, is killed with all that it has started. `use_subprocess=True` is to Headrace the same as
`isolate=True`."""

Options = Mapping[str, Any]

_TIMEOUT: Options = {"timeout": 2}
_SUBPROCESS: Options = {"use_subprocess": True}
_HANGS = [(HEADRACE, _TIMEOUT), (BEAM, _TIMEOUT), (BEAM, {**_TIMEOUT, **_SUBPROCESS})]
_DIES = [(HEADRACE, _SUBPROCESS), (BEAM, _TIMEOUT), (BEAM, _SUBPROCESS)]


def facts(folder: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, str]]:  # noqa: ARG001 - once will do
    """One row for each fault and way to survive it."""
    for fault in ["SIGSEGV"] if quick else FAULTS:
        for side, options in _HANGS if "hangs" in fault else _DIES:
            yield survey(side, fault, options, folder)


def survey(side: str, fault: str, options: Options, folder: Path, limit_secs: float = _LIMIT_SECS) -> dict[str, str]:
    """Runs the pipeline and counts what came out of it."""
    with tempfile.NamedTemporaryFile("r", dir=folder) as file, (folder / "log").open("a") as log:
        command = [sys.executable, "-m", "elsewhere.casualty", side, fault, json.dumps(options), file.name]
        ending = run_to_the_end(command, limit_secs, directory=Path(__file__).parents[1], log=log)
        lines = [json.loads(line) for line in file]
    counts = Counter(what for line in lines for what in line)
    answered = {element for line in lines for what, element in line.items() if what != "seconds"}
    seconds = [f"{line['seconds']:.1f}" for line in lines if "seconds" in line]
    return {
        "the bad element": fault,
        "transform": f"{side}, {', '.join(f'{name}={value}' for name, value in options.items())}",
        "pipeline s": seconds[0] if seconds else "no end",
        "predictions": str(counts["prediction"]),
        "dead letters": str(counts["dead_letter"]),
        "lost": str(COUNT - len(answered)),
        "process ended": ending,
    }
