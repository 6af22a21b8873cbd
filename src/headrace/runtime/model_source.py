"""Models as loading left them, and where a session may get them from in place of loading them itself."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from headrace.core.events import ModelLoaded

Path = tuple[str, ...]
"""A chain of attribute names."""
_DEEPEST = 3
_LIKELY = ("model", "state_dict", "weights")
"""An attribute whose name contains one of these may hold the path of a model's file."""


class Loaded(NamedTuple):
    """A model, and what loading it changed in its handler: other threads' handlers need the same changes."""

    model: Any
    transform: str
    """The transform whose handler loaded it: the changes mean nothing to another transform's handler."""
    changes: dict[Path, dict[str, Any]]
    """Attributes that loading set, on the handler and on handlers within it."""
    lease: Any = None
    """Keeps the model in the machine's shared memory for as long as this object lives."""

    def copy_changes(self, handler: Any, transform: str) -> None:
        """Gives another thread's handler, of this transform, the attributes that loading set."""
        if self.transform == transform:
            for path, one in _handlers_within(handler):
                one.__dict__.update(self.changes.get(path, {}))


LoadsOwn: TypeAlias = Callable[[], tuple[Loaded, ModelLoaded]]
"""Loads a model in this process; returns the event to report, too."""


class ModelSource(ABC):
    """Provides a session's models in place of loading them in this process."""

    @abstractmethod
    def load(self, name: Any, load_here: LoadsOwn) -> Loaded | None:
        """The named model; None: this process has to load its own. ``load_here`` may do that for all processes."""

    @abstractmethod
    def close(self) -> None:
        """Releases everything at the end of the session."""


class ModelProxy(ABC):
    """Stands in for a model in another process; called in place of the handler."""

    @abstractmethod
    def run(self, examples: Sequence[Any]) -> Iterable[Any]:
        """Predictions for examples without their keys."""


def attributes_of(handler: Any) -> dict[Path, dict[str, Any]]:
    """The attributes of the handler, and of the handlers within it, before a load: ``changes_since`` takes them."""
    return {path: dict(vars(one)) for path, one in _handlers_within(handler)}


def changes_since(before: dict[Path, dict[str, Any]], handler: Any) -> dict[Path, dict[str, Any]]:
    """The attributes that a load has set, for ``Loaded.changes``."""

    def is_set(path: Path, name: str, value: Any) -> bool:
        return before.get(path, {}).get(name, before) is not value and not _is_handler(value)

    return {
        path: {name: value for name, value in vars(one).items() if is_set(path, name, value)}
        for path, one in _handlers_within(handler)
    }


def restore(handler: Any, before: dict[Path, dict[str, Any]]) -> None:
    """Undoes what a load has set on the handler, and on the handlers within it; ``before`` is of ``attributes_of``."""
    for path, one in list(_handlers_within(handler)):
        if path in before:
            one.__dict__.clear()
            one.__dict__.update(before[path])


def _handlers_within(handler: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The handler and, recursively, the handlers in its attributes, each with its attribute path."""
    yield path, handler
    for name, value in list(vars(handler).items()):
        if _is_handler(value) and hasattr(value, "__dict__") and len(path) < _DEEPEST:
            yield from _handlers_within(value, (*path, name))


def _is_handler(value: Any) -> bool:
    """Whether it may be a handler; classes are not (XGBoost's model classes have a ``load_model`` method)."""
    return hasattr(value, "load_model") and not isinstance(value, type)


def bytes_of_model_files(handler: Any) -> int | None:
    """A lower bound in bytes for the loaded model, from the local files that the handler names; None: unknown.

    A model in memory is rarely smaller than its file, except when loading quantizes it: count half of the file.
    """
    size = 0
    for name, value in vars(handler).items():
        if isinstance(value, str | os.PathLike) and any(word in name.lower() for word in _LIKELY):
            with suppress(OSError, ValueError):  # not a path, or not readable
                size += os.path.getsize(value) if os.path.isfile(value) else 0
    return size // 2 or None
