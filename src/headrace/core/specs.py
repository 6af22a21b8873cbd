"""Handlers in the specs of Beam's anomaly detection, which describe an object by its class and constructor arguments.

``apache_beam.ml.anomaly.specifiable.specifiable(SomeHandler)`` makes a class keep its constructor's arguments in
``init_kwargs``, from which ``to_spec()`` makes the spec, and calls the constructor when an attribute is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def constructed(handler: Any) -> Any:
    """The handler; calls its constructor if that was put off."""
    if getattr(handler, "_initialized", True) is False:
        handler.run_original_init()
    return handler


def describe_as(changed: Any, handler: Any, method: str, *functions: Callable[..., Any]) -> None:
    """Makes the spec of ``changed``, if its class has specs, say that it is ``handler.method(*functions)``."""
    if hasattr(type(handler), "spec_type"):
        arguments = {"make": changed_handler, "handler": handler, "method": method, "functions": [*functions]}
        for name, value in {"init_kwargs": arguments, "spec_type": partial(str, changed_handler.__name__)}.items():
            object.__setattr__(changed, name, value)  # works for frozen dataclasses, too


def changed_handler(
    make: Any,  # noqa: ARG001 - this function: as an argument it becomes known by its name
    handler: Any,
    method: str,
    functions: list[Callable[..., Any]],
    _run_init: bool = True,
) -> Any:
    """What a spec of a changed handler stands for."""
    return getattr(handler, method)(*functions)
