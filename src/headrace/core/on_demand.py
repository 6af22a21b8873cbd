"""The models of a keyed handler that is called directly, by a user or a subclass: each loads on first use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.core.handler import ModelHandler


class ModelsOnDemand(Mapping[Any, Any]):
    """The models by cohort; thread-safe. Loads one at a time.

    Args:
        handlers: load the models, by cohort.
        limit: how many models to hold at a time; None: all. If all of them are in use, a caller that needs another
            waits.
    """

    def __init__(self, handlers: Mapping[Any, ModelHandler[Any, Any, Any]], limit: int | None = None) -> None:
        self._handlers = handlers
        self._limit = limit or len(handlers)
        self._loaded: dict[Any, Any] = {}
        """The least recently used comes first."""
        self._users = dict.fromkeys(handlers, 0)
        self._changed = threading.Condition()

    @contextmanager
    def use(self, cohort: Any) -> Iterator[Any]:
        """A context in which the model is kept."""
        with self._changed:
            self._changed.wait_for(lambda: cohort in self._loaded or self._has_room())
            model = self._loaded.pop(cohort) if cohort in self._loaded else self._handlers[cohort].load_model()
            self._loaded[cohort] = model
            self._users[cohort] += 1
        try:
            yield model
        finally:
            del model  # once unused, it may be evicted
            with self._changed:
                self._users[cohort] -= 1
                self._changed.notify_all()

    def __getitem__(self, cohort: Any) -> Any:
        """The model; it may be evicted afterwards."""
        with self.use(cohort) as model:
            return model

    def __iter__(self) -> Iterator[Any]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def _has_room(self) -> bool:
        """Whether another model may be loaded; evicts the least recently used idle one if necessary."""
        if len(self._loaded) >= self._limit:
            idle = next((cohort for cohort in self._loaded if not self._users[cohort]), None)
            if idle is None:
                return False
            del self._loaded[idle]
        return True
