"""What Beam's code expects of a handler: its attributes, a warning where an import was forgotten, and specs.

``apache_beam.ml.anomaly.specifiable.specifiable(SomeHandler)`` makes a class keep its constructor's arguments in
``init_kwargs``, from which ``to_spec()`` makes the spec, and calls the constructor when an attribute is read.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from types import FrameType
from typing import Any, TypeVar

from headrace.core.errors import level_of_the_user

ClassT = TypeVar("ClassT", bound=type)
ChangedT = TypeVar("ChangedT")


BEAMS_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "_DelegatingHandler": {
        "_unkeyed": "unkeyed",
        "_max_models_per_worker_hint": "max_models",
        "_id_to_mh_map": "cohorts",
        "_key_to_id_map": "cohort_of",
    },
    "SklearnModelHandler": {"_model_inference_fn": "_inference_fn"},
    "OnnxModelHandlerNumpy": {"_model_inference_fn": "_inference_fn"},
    "XGBoostModelHandler": {"_model_state": "_model_uri"},
    "_HuggingFaceModelHandler": {"_model_config_args": "_load_model_args"},
    "HuggingFacePipelineModelHandler": {"_model": "_model_uri"},
    "_VLLMModelHandler": {"_model_name": "_model_uri"},
}
"""Headrace's names by Beam's, where they differ, for each class. All others are the same."""


def with_beams_attributes(cls: ClassT) -> ClassT:
    """Adds the attributes of a class that the table lists."""
    for beams, ours in BEAMS_ATTRIBUTES[cls.__qualname__].items():
        setattr(cls, beams, _alias(ours))
    return cls


def _alias(name: str) -> property:
    return property(attrgetter(name), lambda owner, value: setattr(owner, name, value))


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
    frame: FrameType | None = sys._getframe(2)
    callers = []
    while frame is not None:
        callers.append((str(frame.f_globals.get("__name__", "")), frame.f_code.co_name))
        frame = frame.f_back
    if (_BEAMS, "expand") not in callers[:_NEAR] or any(module.startswith(_NO_CHOICE) for module, _ in callers):
        return
    _warned = True
    warnings.warn(
        f"apache_beam's own RunInference runs {type(handler).__qualname__}, a handler of Headrace's: bad elements fail "
        "their whole batch there, and options such as isolate are missing. Import RunInference from headrace.beam "
        "(`headrace migrate PATH` changes the imports of whole projects).",
        UserWarning,
        stacklevel=level_of_the_user(),
    )


def constructed(handler: Any) -> Any:
    """The handler; calls its constructor if that was put off."""
    if getattr(handler, "_initialized", True) is False:
        handler.run_original_init()
    return handler


def describe_as(changed: ChangedT, handler: Any, method: str, *functions: Callable[..., Any]) -> ChangedT:
    """Makes the spec of ``changed``, if its class has specs, say that it is ``handler.method(*functions)``."""
    if hasattr(type(handler), "spec_type"):
        arguments = {"make": changed_handler, "handler": handler, "method": method, "functions": [*functions]}
        for name, value in {"init_kwargs": arguments, "spec_type": partial(str, changed_handler.__name__)}.items():
            object.__setattr__(changed, name, value)  # works for frozen dataclasses, too
    return changed


def changed_handler(
    make: Any,  # noqa: ARG001 - this function: as an argument it becomes known by its name
    handler: Any,
    method: str,
    functions: list[Callable[..., Any]],
    _run_init: bool = True,
) -> Any:
    """What a spec of a changed handler stands for."""
    return getattr(handler, method)(*functions)
