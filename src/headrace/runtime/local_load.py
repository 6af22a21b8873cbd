"""Loads a model that the machine shares in this process, and exports it for all others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from headrace.core.events import ModelLoaded
from headrace.core.result import Caught
from headrace.hosts.environment import has_accelerator
from headrace.hosts.host import Exported, Response, encoded
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.weights_file import NotMappableError, WeightsLayout, attach, export
from headrace.models.memory import resident_bytes, trim_memory
from headrace.runtime.messages import Done, Raised
from headrace.runtime.model_source import Loaded, LoadsOwn
from headrace.runtime.spec import SessionSpec


class LocalLoad:
    """One load of a model in this process, for the machine's manager; call it as often as a manager asks.

    Args:
        load: loads the model.

    Attributes:
        error: what ``load`` raised.
    """

    def __init__(self, load: LoadsOwn) -> None:
        self._load = load
        self._exported: Exported | None = None
        self._files: list[int] = []
        self.error: Exception | None = None
        self._events: list[ModelLoaded] = []
        self._mapped: Loaded | None = None

    def __call__(self) -> tuple[Exported, list[int]]:
        """Loads and exports the model, the first time; returns the answer to the manager, and the weights file."""
        if self._exported is None:
            self._exported = self._load_and_export()
        return self._exported, self._files

    def mapped_from(self, file: int) -> tuple[Loaded | None, list[ModelLoaded]]:
        """The model and the event of its load, if this process has mapped it from that weights file already."""
        is_ours = bool(self._files) and os.path.sameopenfile(file, self._files[0])
        return (self._mapped, self._events) if is_ours else (None, [])

    def close(self) -> None:
        """Closes the weights file; the mapping lasts as long as something else refers to the model."""
        files, self._files, self._mapped = self._files, [], None
        for file in files:
            os.close(file)

    def _load_and_export(self) -> Exported:
        resident = resident_bytes()
        try:
            loaded, event = self._load()
        except Exception as error:
            self.error = error
            return Exported(encoded(Response(Raised(Caught.of(error), [], loading=True), reducers=stand_ins([error]))))
        done = encoded(Response(Done([], [], [], [])))
        is_held = _is_held_elsewhere(loaded)
        try:
            layout = self._export(loaded, moves=not is_held)
        except NotMappableError as error:
            reason = str(error)
        else:
            self._events = [event]
            peak = max(layout.nbytes, resident_bytes() - resident)
            del loaded
            if is_held:
                trim_memory()  # a model in a reference cycle is freed only by the garbage collector
            return Exported(done, layout, peak=peak)
        del loaded
        trim_memory()  # the model is loaded again, by a host
        return Exported(done, reason=reason)

    def _export(self, loaded: Loaded, *, moves: bool) -> WeightsLayout:
        """Copies the model, or moves it, into a weights file, and maps it from there."""
        try:
            self._files, layout = export(loaded, destroys=False, moves=moves)
        except NotMappableError:
            raise
        except Exception as error:
            raise NotMappableError(f"copying it failed ({type(error).__name__}: {error})") from error
        try:
            self._mapped = attach(self._files, layout)
        except Exception as error:
            self.close()
            raise NotMappableError(f"it does not unpickle ({type(error).__name__}: {error})") from error
        return layout


@contextmanager
def local_load(spec: SessionSpec, name: Any, load: LoadsOwn) -> Iterator[LocalLoad | None]:
    """A ``LocalLoad`` of the named model for the context; None if this process should not load it for others."""
    if not _may_load(spec, name):
        yield None
        return
    with closing(LocalLoad(load)) as local:
        yield local


def _may_load(spec: SessionSpec, name: Any) -> bool:
    """Whether a worker process may load the model for all processes of the machine, in place of a host.

    Not if it has to be in hosts anyway. Nor if its weights cannot be mapped, or may be on a device: the worker would
    load it in vain, and the framework may keep part of the device's memory. Where neither the handler nor the machine
    tells, the worker tries it.
    """
    mappable = getattr(spec.plan.models[name], "mappable", None)
    if spec.isolated or spec.copies_of(name) > 1:
        return False
    return not has_accelerator(os.environ) if mappable is None else bool(mappable)


def _is_held_elsewhere(loaded: Loaded) -> bool:
    """Whether something refers to the model already: a cache, or the model itself.

    Other threads may be computing with what is in a cache, and would go on in memory that moving an array has freed.
    """
    alone = Loaded(object(), "", {})
    changed = sum(value is loaded.model for values in loaded.changes.values() for value in values.values())
    return sys.getrefcount(loaded.model) > sys.getrefcount(alone.model) + changed
