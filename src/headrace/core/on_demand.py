"""The models of a keyed handler that is called as one handler, by hand or by a subclass: loaded when first needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.core.handler import ModelHandler


class ModelsOnDemand(Mapping[Any, Any]):
    """The model of each cohort; thread-safe. Loads one at a time.

    Args:
        handlers: load the models, by cohort.
        limit: how many may be held at a time; None: all. Where all of those are in use, whoever needs another waits.
    """

    def __init__(self, handlers: Mapping[Any, ModelHandler[Any, Any, Any]], limit: int | None = None) -> None:
        self._handlers = handlers
        self._limit = limit or len(handlers)
        self._loaded: dict[Any, Any] = {}
        """That which was used least recently comes first."""
        self._users = dict.fromkeys(handlers, 0)
        self._changed = threading.Condition()

    @contextmanager
    def use(self, cohort: Any) -> Iterator[Any]:
        """The model, which stays while the context is open."""
        with self._changed:
            self._changed.wait_for(lambda: cohort in self._loaded or self._has_room())
            model = self._loaded.pop(cohort) if cohort in self._loaded else self._handlers[cohort].load_model()
            self._loaded[cohort] = model
            self._users[cohort] += 1
        try:
            yield model
        finally:
            del model  # the next one may be loaded as soon as nobody uses this one
            with self._changed:
                self._users[cohort] -= 1
                self._changed.notify_all()

    def __getitem__(self, cohort: Any) -> Any:
        """The model, as it is at the moment."""
        with self.use(cohort) as model:
            return model

    def __iter__(self) -> Iterator[Any]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def _has_room(self) -> bool:
        """Lets the one go that has been idle longest, if need be."""
        if len(self._loaded) >= self._limit:
            idle = next((cohort for cohort in self._loaded if not self._users[cohort]), None)
            if idle is None:
                return False
            del self._loaded[idle]
        return True
