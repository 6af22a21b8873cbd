"""Notices that Beam's own RunInference runs a handler of Headrace's: most likely an import was forgotten."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_BEAMS = "apache_beam.ml.inference.base"
_NEAR = 6
"""How many calls lie, at most, between Beam's transform and a handler: those of wrappers."""
_NO_CHOICE = ("apache_beam.ml.anomaly.", "apache_beam.yaml.")
"""Transforms of Beam's that apply its RunInference themselves."""
_warned = False


def warn_of_beams_transform(handler: object) -> None:
    """Warns, once in this process, if Beam's RunInference asks: a handler calls this as a pipeline is built."""
    global _warned  # noqa: PLW0603 - once in this process
    if _warned or _BEAMS not in sys.modules:
        return
    callers = _modules_above(sys._getframe(2))
    nearest = callers[:_NEAR]
    if (_BEAMS, "expand") not in nearest or any(module.startswith(_NO_CHOICE) for module, _ in callers):
        return
    _warned = True
    users = [not module.startswith(("apache_beam.", "headrace.")) for module, _ in callers]
    warnings.warn(
        f"apache_beam's own RunInference runs {type(handler).__qualname__}, a handler of Headrace's: bad elements fail "
        "their whole batch there, and options such as isolate are missing. Import RunInference from headrace.beam "
        "(`headrace migrate PATH` changes the imports of whole projects).",
        UserWarning,
        stacklevel=3 + (users.index(True) if True in users else 0),
    )


def _modules_above(frame: FrameType | None) -> list[tuple[str, str]]:
    """The module and the function of a frame and of all that called it."""
    found = []
    while frame is not None:
        found.append((str(frame.f_globals.get("__name__", "")), frame.f_code.co_name))
        frame = frame.f_back
    return found
