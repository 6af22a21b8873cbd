"""Names that users mistype, or give in the wrong place: what they most likely meant."""

from __future__ import annotations

import functools
import glob
import importlib.metadata
import inspect
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

from headrace.core.config import BatchingConfig, PlacementConfig, RetryConfig
from headrace.core.errors import ConfigurationError, NotYetHonouredWarning, level_of_the_user

P = ParamSpec("P")
T = TypeVar("T")

HANDLER_OPTIONS = (
    "batch_bucket_boundaries",
    "batch_length_fn",
    "bucket_boundaries",
    "element_size_fn",
    "env_vars",
    "large_model",
    "length_fn",
    "max_batch_duration_secs",
    "max_batch_size",
    "max_batch_weight",
    "min_batch_size",
    "model_copies",
    "sort_by_length",
)
"""The options of all model handlers."""
_PLACES: Mapping[str, str] = {
    name: place.format(name)
    for place, names in {
        "RetryConfig({}=...), given as retry": [one.name for one in fields(RetryConfig)],
        "PlacementConfig({}=...), given as placement": [one.name for one in fields(PlacementConfig)],
        "BatchingConfig({}=...), given as batching": [one.name for one in fields(BatchingConfig)],
        "the model handler: SomeModelHandler(..., {}=...)": HANDLER_OPTIONS,
        "RunInference(...).with_exception_handling({}=...)": ("exc_class", "threshold", "use_subprocess"),
        "RunInference({}=...)": (
            *("clock", "metrics_namespace", "model_identifier", "model_metadata_pcoll", "monitoring_transform"),
            "watch_model_pattern",
        ),
        "RunInference({0}=...) or headrace.predict({0}=...)": [
            *("batching", "inference_args", "isolate", "placement", "retry"),
        ],
        "RunInference(...).with_exception_handling({0}=...) or headrace.predict({0}=...)": ("timeout",),
    }.items()
    for name in names
}
"""Where options belong."""
_MEANT: Mapping[str, str] = {
    "batch_size": "max_batch_size=... of the model handler (for a fixed size, an equal min_batch_size=..., too)",
    "on_failure": "RunInference(...).with_exception_handling(), and take its two results apart",
}
"""What to give in place of options that exist nowhere, or not in a pipeline."""


def unknown_arguments(caller: str, given: Iterable[str], known: Iterable[str]) -> ConfigurationError:
    """The error for ``given`` keyword arguments that a class lacks; says where each belongs, or how it is spelt."""
    known = sorted(known)
    return ConfigurationError(" ".join(f"{caller} has no argument {name!r}{_advice(name, known)}" for name in given))


def constructor_arguments(cls: type) -> set[str]:
    """The names of the arguments of a class's constructor and of its base classes'."""
    inits = [vars(base)["__init__"] for base in cls.__mro__[:-1] if "__init__" in vars(base)]
    found = {one.name: one for init in inits for one in inspect.signature(init).parameters.values()}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, one in found.items() if one.kind in named} - {"self"}


def with_options_of(base: type) -> Callable[[T], T]:
    """Decorates a constructor that hands ``**options`` on to that of ``base``: its signature has the latter's, too."""

    def decorate(init: Any) -> Any:
        own = inspect.signature(init).parameters
        both = {**own, **inspect.signature(base).parameters, **own}
        init.__signature__ = inspect.Signature(sorted(both.values(), key=attrgetter("kind")))
        return init

    return decorate


def refusing_unknown(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function: keyword arguments that it does not have raise ``unknown_arguments`` of those it has."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        unknown = [name for name in kwargs if name not in parameters]
        if unknown:
            known = [one.name for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
            raise unknown_arguments(function.__name__, unknown, known)
        return function(*args, **kwargs)

    return call


def _advice(name: str, known: list[str]) -> str:
    if name in _MEANT:
        return f": use {_MEANT[name]}."
    if name in _PLACES:
        return f": it belongs to {_PLACES[name]}."
    if meant := nearest(name, known):
        return f"; did you mean {meant!r}?"
    if meant := nearest(name, _PLACES):
        return f"; did you mean {meant!r}, which belongs to {_PLACES[meant]}?"
    return f"; it has {', '.join(known)}."


def warn_ignored(made: object, name: str, cure: str) -> None:
    """Warns, where the user makes an object, of an argument that Beam ignores and published pipelines give."""
    text = f"{type(made).__qualname__}({name}=...) has no effect, here or with Beam; {cure}."
    warnings.warn(text, NotYetHonouredWarning, stacklevel=level_of_the_user())


_LIKE_FILES = 0.75
"""Extensions make names alike that are not."""


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name most like a mistyped one, whatever its case; None if none has so much in common with it."""
    from difflib import get_close_matches  # noqa: PLC0415 - only where something is wrong

    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_lower, 1, likeness)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that does not exist: a question if another is like it, else a full stop."""
    found = nearest(name, known)
    return "." if found is None else f"; did you mean {found!r}?"


HANDLERS = "headrace.handlers"
"""The entry points that are handlers."""


def handler_names() -> list[str]:
    """The names of the installed handlers."""
    return sorted({entry.name for entry in importlib.metadata.entry_points(group=HANDLERS)})


def factory_place(name: str) -> tuple[str, str] | None:
    """The module and the name in it of the factory that a name stands for; None if there is no such handler."""
    entries = [entry.value for entry in importlib.metadata.entry_points(group=HANDLERS) if entry.name == name]
    module, colon, attribute = (entries[0] if entries and ":" not in name else name).partition(":")
    return (module, attribute) if colon else None


def no_handler(name: str) -> str:
    """That there is no handler of a name, and how to find one."""
    module, dot, factory = name.rpartition(".")
    own = f"{module}:{factory}" if dot and factory != "py" else "package.module:factory"
    return (
        f"there is no handler {name!r}{did_you_mean(name, handler_names())} `headrace handlers` lists them all; write "
        f"one of your own as {own}."
    )


def type_option(column: str, kind: str) -> str:
    """The option, as a shell takes it, that gives a column of CSV files a type."""
    name = glob.escape(column).replace(",", "?") if "," in column else column
    return f"--types {shlex.quote(f'{name}={kind}')}"


def no_file(path: str) -> str:
    """The sentence about a local file that does not exist, with the name of one in its folder that is spelt like it."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or os.curdir):
        return f"there is no file {path!r}, nor a folder {folder!r}."
    try:
        found = nearest(name, os.listdir(folder or os.curdir), _LIKE_FILES)
    except OSError:  # a folder that may not be listed
        found = None
    return f"there is no file {path!r}" + (f"; did you mean {os.path.join(folder, found)!r}?" if found else ".")
