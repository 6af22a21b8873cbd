"""What an import costs, each in a fresh process: every worker and every submission pays it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TITLE = "Importing, in a fresh process"

_IMPORTS = (
    "import headrace",
    "import apache_beam",
    "from headrace.beam import RunInference",
    "from apache_beam.ml.inference.base import RunInference",
)

_PROBE = """
import json, os, sys, time
started = time.perf_counter()
exec(sys.argv[1])
seconds = time.perf_counter() - started
from headrace.models.memory import memory_of
print(json.dumps({"seconds": seconds, "bytes": memory_of(os.getpid()).pss, "torch": "torch" in sys.modules}))
"""


def facts(_: Path, repeats: int, *, quick: bool) -> Iterator[dict[str, str]]:  # noqa: ARG001 - there is no size
    """One row for each import; they take turns."""
    rounds = [{statement: _probe(statement) for statement in _IMPORTS} for _ in range(repeats)]
    for statement in _IMPORTS:
        probes = [one[statement] for one in rounds]
        yield {
            "import": f"`{statement}`",
            "median s": f"{statistics.median(probe['seconds'] for probe in probes):.2f}",
            "memory MB": f"{statistics.median(probe['bytes'] for probe in probes) / 1e6:.0f}",
            "imports torch": "yes" if probes[0]["torch"] else "no",
        }


def _probe(statement: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _PROBE, statement]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])
