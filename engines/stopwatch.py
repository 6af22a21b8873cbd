"""Measures in each worker process how long a RunInference waits for its model; a plug-in of Beam (``--beam_plugins``).

HEADRACE_STOPWATCH names the DoFn as ``module:class``.
"""

from __future__ import annotations

import importlib
import os

from recording import timed_setup

VARIABLE = "HEADRACE_STOPWATCH"


def _install(name: str) -> None:
    module, cls = name.split(":")
    do_fn = getattr(importlib.import_module(module), cls)
    do_fn.setup = timed_setup(do_fn.setup)


if VARIABLE in os.environ:
    _install(os.environ[VARIABLE])
