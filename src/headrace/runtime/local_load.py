"""Loads a model that the machine shares in this process, and exports it for all others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from headrace.core.events import ModelLoaded
from headrace.core.result import Caught
from headrace.hosts.environment import has_accelerator
from headrace.hosts.host import Exported, Response
from headrace.ipc.codec import encode
from headrace.ipc.exceptions import stand_ins
from headrace.ipc.weights_file import NotMappableError, WeightsLayout, attach, export
from headrace.models.memory import resident_bytes, trim_memory
from headrace.runtime.messages import Done, Raised
from headrace.runtime.model_source import Loaded, LoadsOwn, attributes_of, restore
from headrace.runtime.spec import SessionSpec


class LocalLoad:
    """One load of a model in this process, for the machine's manager; call it as often as a manager asks.

    Args:
        load: loads the model.
        handler: whose attributes ``load`` may set.

    Attributes:
        error: what ``load`` raised.
        event: that it has loaded the model.
    """

    def __init__(self, load: LoadsOwn, handler: Any) -> None:
        self._load = load
        self._handler = handler
        self._exported: Exported | None = None
        self._files: list[int] = []
        self.error: Exception | None = None
        self.event: ModelLoaded | None = None
        self._mapped: Loaded | None = None

    def __call__(self) -> tuple[Exported, list[int]]:
        """Loads and exports the model, the first time; returns the answer to the manager, and the weights file."""
        if self._exported is None:
            self._exported = self._load_and_export()
        return self._exported, self._files

    def mapped_from(self, file: int) -> Loaded | None:
        """The model, if this process has mapped it from that weights file already."""
        return self._mapped if self._files and os.path.sameopenfile(file, self._files[0]) else None

    def close(self) -> None:
        """Closes the weights file; the mapping stays."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)

    def _load_and_export(self) -> Exported:
        before, resident = attributes_of(self._handler), resident_bytes()
        try:
            loaded, self.event = self._load()
        except Exception as error:
            self.error = error
            return Exported(_encoded(Response(Raised(Caught.of(error), [], loading=True), reducers=stand_ins([error]))))
        done = _encoded(Response(Done([], [], [], [])))
        try:
            layout = self._export(loaded)
        except NotMappableError as error:
            reason = str(error)
        else:
            return Exported(done, layout, peak=max(layout.nbytes, resident_bytes() - resident))
        restore(self._handler, before)
        del loaded
        trim_memory()  # the model is loaded again, by a host
        return Exported(done, reason=reason)

    def _export(self, loaded: Loaded) -> WeightsLayout:
        """Moves the model into a weights file, and maps it from there."""
        try:
            file, layout = export(loaded, destroys=False)
        except OSError as error:
            raise NotMappableError(f"copying it failed ({error})") from error
        self._files = [file]
        try:
            self._mapped = attach(file, layout)
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
    with closing(LocalLoad(load, spec.plan.models[name])) as local:
        yield local


def _may_load(spec: SessionSpec, name: Any) -> bool:
    """Whether a worker process may load the model for all processes of the machine, in place of a host.

    Not if it has to be in hosts anyway. Nor if its weights cannot be mapped, or may be on a device: the worker would
    load it in vain, and the framework may keep part of the device's memory. Where neither the handler nor the machine
    tells, the worker tries it.
    """
    handler = spec.plan.models[name]
    mappable = getattr(handler, "mappable", None)
    if spec.isolated or handler.model_copies() > 1 or spec.copies_of(name) > 1:
        return False
    return not has_accelerator(os.environ) if mappable is None else bool(mappable)


def _encoded(response: Response) -> bytes:
    message = encode(response.head, response.rows, reducers=response.reducers)
    encoded = bytearray(message.nbytes)
    message.write(memoryview(encoded))
    return bytes(encoded)
