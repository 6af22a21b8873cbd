"""What a handler asks for, taken apart into data: which functions, which models, which keys."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from headrace.core.config import OF_THE_TRANSFORM, BatchingConfig
from headrace.core.handler import bare
from headrace.core.keyed import KeyedModelHandler
from headrace.core.result import Caught, Failure, Stage

Handler = Any
"""A handler, Headrace's or Beam's: known by what it can do, not by its class."""

ONLY = None
"""The name of the model where there is only one."""


_PATHS = ("_model_uri", "_torch_script_model_path", "_state_dict_path", "_model_name", "model_uri", "model_path")
"""Where handlers, Headrace's, Beam's and most others, keep what they load, which is what they call the model."""


class Refreshed(NamedTuple):
    """A model that took the place of the one that its handler was made with."""

    path: str
    """What it was loaded from."""
    name: str
    """What metrics call it."""


@dataclass(frozen=True)
class Plan:
    """A handler, taken apart."""

    handler: Handler
    """The handler without what is listed below."""
    preprocess: tuple[Callable[[Any], Any], ...]
    postprocess: tuple[Callable[[Any], Any], ...]
    models: Mapping[Any, Handler]
    """Who loads and runs each model, by the model's name."""
    keyed: bool
    """Whether elements are (key, example) pairs that the runner takes apart."""
    routed: bool
    """Whether the key decides on the model."""
    prebatched: bool
    """Whether each element is a batch, given to the model as it is."""
    remote: frozenset[Any]
    """The models of which a batch is a request to somebody's endpoint, so that trying its parts again is billed."""
    batching: BatchingConfig
    model_limit: int | None
    """How many of the models one process may hold; None: all."""
    own_batching: Mapping[Any, BatchingConfig] = field(default_factory=dict)
    """Of the models by key for which ``batching`` does not hold."""
    refreshed: Mapping[Any, Refreshed] = field(default_factory=dict)
    """Those of the models that are not what their handlers were made with."""

    def batching_of(self, model: Any) -> BatchingConfig:
        """When a batch of that model leaves."""
        return self.own_batching.get(model, self.batching)

    @property
    def name(self) -> str:
        """What the log and errors call the models: the class of the handlers that load them, if it is one."""
        classes = {type(model).__qualname__ for model in self.models.values()}
        return classes.pop() if len(classes) == 1 else type(self.handler).__qualname__

    @property
    def has_rows_in_elements(self) -> bool:
        """Whether an element is many rows."""
        return self.prebatched or self.batching.columnar

    @property
    def may_wait(self) -> bool:
        """Whether elements may wait for those of other bundles."""
        return bool(self.batching.max_batch_duration_secs) and not self.has_rows_in_elements

    def label(self, model: Any) -> str:
        """A model's name in metrics: empty where there is only one."""
        if not self.routed:
            return ""
        return f"{model}-{self.refreshed[model].name}" if model in self.refreshed else str(model)

    def stored(self, model: Any) -> Any:
        """What a model goes by among all that there may be at a time, older and newer ones."""
        return (model, self.refreshed[model].path) if model in self.refreshed else model

    def failure(
        self,
        tag: Any,
        stage: Stage,
        index: int,
        element: Any,
        caught: Caught,
        *,
        model: Any = ONLY,
        attempts: int = 1,
        source: Any = None,
    ) -> Failure:
        """The outcome of an element that an operation could not do.

        Args:
            tag: as the rest of the first five, see ``Failure``.
            stage: see there.
            index: see there.
            element: see there.
            caught: see there.
            model: the name of the model, where there are several and this one was to run or has run.
            attempts: how often the element was tried.
            source: the element before preprocessing, if it is at hand.
        """
        in_inference = stage is Stage.INFERENCE
        is_source = in_inference and not self.preprocess and not self.batching.columnar  # which cuts elements up
        is_keyed = self.keyed and type(element) is tuple and len(element) == 2
        return Failure(
            tag,
            stage,
            index,
            element,
            caught,
            in_inference and self.has_rows_in_elements,
            attempts,
            self._model_id(model),
            element[0] if is_keyed else None,
            element if is_source else source,
        )

    def _model_id(self, model: Any) -> str | None:
        handler = self.models.get(model)
        own = getattr(handler, "__dict__", {})
        for path in map(own.get, _PATHS):
            if isinstance(path, str):
                return path
        return None if handler is None else self.label(model) or None


def make_plan(handler: Handler, batching: BatchingConfig | None = None) -> Plan:
    """Takes a handler apart.

    Args:
        handler: Headrace's or Beam's.
        batching: replaces what the handler's ``batch_elements_kwargs()`` asks for.

    Raises:
        ConfigurationError: the handler's batching options are wrong.
    """
    prebatched = handler.should_skip_batching()
    inner = _adopted(bare(handler))
    keyed = _is_plainly_keyed(inner) and not prebatched
    routed = keyed and inner.unkeyed is None
    models = inner.cohorts if routed else {ONLY: inner.unkeyed if keyed else inner}
    return Plan(
        handler=inner,
        preprocess=tuple(handler.get_preprocess_fns()),
        postprocess=tuple(handler.get_postprocess_fns()),
        models=models,
        keyed=keyed,
        routed=routed,
        prebatched=prebatched,
        remote=frozenset(name for name, model in models.items() if is_client(model)),
        batching=batching or BatchingConfig.from_kwargs(handler.batch_elements_kwargs(), handler),
        model_limit=inner.max_models if routed else None,
        own_batching=_own_batching(handler, models) if routed and batching is None else {},
    )


@dataclass(frozen=True)
class _OfExample:
    """What a handler without keys measures of an example, of a pair of a key and an example."""

    function: Callable[[Any], float]

    def __call__(self, pair: Any) -> float:
        return self.function(pair[1])


def is_client(handler: Handler) -> bool:
    """Whether it only asks an endpoint for predictions, as a RemoteModelHandler does."""
    return hasattr(handler, "create_client") and hasattr(handler, "request")


def _own_batching(handler: Handler, models: Mapping[Any, Handler]) -> dict[Any, BatchingConfig]:
    """What models by key ask for themselves; where one says nothing, what the handler around them asks for."""
    given, configs = handler.batch_elements_kwargs(), {}
    for name, model in models.items():
        asked = model.batch_elements_kwargs()
        own = {option: value for option, value in asked.items() if option not in OF_THE_TRANSFORM}
        for option in own.keys() & {"element_size_fn", "length_fn"}:
            own[option] = _OfExample(own[option])
        if own:
            configs[name] = BatchingConfig.from_kwargs({**given, **own}, model)
    return configs


def _adopted(handler: Handler) -> Handler:
    """A foreign handler as we know it: by the plug-in that is registered for the module of one of its base classes."""
    modules = {cls.__module__ for cls in type(handler).__mro__}
    for plug_in in _adopters():
        if plug_in.name in modules:
            handler = plug_in.load()(handler)
    return handler


@cache
def _adopters() -> tuple[importlib.metadata.EntryPoint, ...]:
    """The plug-ins; looked up once, since that reads the metadata of every installed package."""
    return tuple(importlib.metadata.entry_points(group="headrace.adopters"))


def _is_plainly_keyed(handler: Handler) -> bool:
    """Whether the runner may do the keys: no subclass does something else with them."""
    cls = type(handler)
    return isinstance(handler, KeyedModelHandler) and all(
        getattr(cls, method) is getattr(KeyedModelHandler, method) for method in ("run_inference", "load_model")
    )
