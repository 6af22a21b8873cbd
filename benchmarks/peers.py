"""Where the peers are: each in an environment of its own, without Headrace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def python_of(name: str) -> Path | None:
    """The Python of the environment that ``make ray`` or ``make daft`` makes, or that run.py was given.

    None, with a line on standard error, if there is none; a workload then leaves the peer out.
    """
    python = Path(os.environ.get(f"HEADRACE_BENCHMARK_{name.upper()}", _ROOT / f".venv-{name}/bin/python"))
    if python.exists():
        return python
    print(f"without {name}, for there is no {python}; `make {name}` makes it", file=sys.stderr, flush=True)
    return None
