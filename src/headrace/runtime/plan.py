"""Parses a handler into data: its functions, its models, its keys."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from headrace.core.config import OF_THE_TRANSFORM, BatchingConfig
from headrace.core.engine import EngineModelHandler
from headrace.core.errors import ConfigurationError
from headrace.core.events import FALLBACK
from headrace.core.handler import ModelHandler, bare
from headrace.core.keyed import KeyedModelHandler, OfExample
from headrace.core.remote import RemoteModelHandler
from headrace.core.result import Caught, Failure, Stage

Handler = Any
"""A handler of Headrace or Beam, identified by its methods rather than its class."""

ONLY = None
"""The name of the model if there is only one."""


_PATHS = ("_model_uri", "_torch_script_model_path", "_state_dict_path", "_model_name", "model_uri", "model_path")
"""The attributes in which handlers of Headrace, Beam and others keep the model's path, which then names the model."""
_MAPPINGS = frozenset(("models", "own_batching", "refreshed"))
"""The fields of a plan that are mappings."""


_MEASURES = {"length_fn", "bucket_boundaries", "element_size_fn", "max_batch_weight"}
"""Options that say how to measure elements."""


class Refreshed(NamedTuple):
    """A model that has replaced the one that its handler was created with."""

    path: str
    name: str


@dataclass(frozen=True)
class Plan:
    """A handler, parsed."""

    handler: Handler
    """The handler without the functions and wrappers listed below."""
    preprocess: tuple[Callable[[Any], Any], ...]
    postprocess: tuple[Callable[[Any], Any], ...]
    models: Mapping[Any, Handler]
    """The handler that loads and runs each model, by the model's name."""
    keyed: bool
    """Whether elements are (key, example) pairs that the runner splits."""
    routed: bool
    prebatched: bool
    """Whether each element is a batch, passed to the model unchanged."""
    remote: frozenset[Any]
    """The models whose batches are requests to a remote endpoint: retrying parts of one is billed again."""
    batching: BatchingConfig
    model_limit: int | None
    """How many models a process may hold; None: no limit."""
    own_batching: Mapping[Any, BatchingConfig] = field(default_factory=dict)
    """Batching options of keyed models, in place of ``batching``."""
    refreshed: Mapping[Any, Refreshed] = field(default_factory=dict)
    """Models that have replaced those that the handlers were created with."""
    rank: int = 0
    """Which fallback this is; 0: the model itself."""
    has_fallback: bool = False
    column_types: Mapping[str, Any] = field(default_factory=dict)
    """What the columns of the rows hold, if elements are rows of which that is known."""

    def __getstate__(self) -> dict[str, Any]:
        """Mappings as pairs: MLTransform writes transforms as JSON, whose keys are strings, and names may be None."""
        return {name: [*value.items()] if name in _MAPPINGS else value for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: dict(value) if name in _MAPPINGS else value for name, value in state.items()})

    def batching_of(self, model: Any) -> BatchingConfig:
        """The batching options of the named model."""
        return self.own_batching.get(model, self.batching)

    @property
    def concurrent(self) -> frozenset[Any]:
        """The models whose batches are requests that run side by side: remote ones, asynchronous ones, and engines."""
        if self.batching.columnar:
            return frozenset()
        return frozenset(name for name, model in self.models.items() if sends_requests(model))

    @property
    def name(self) -> str:
        """The handler's class name, for logs and errors; for keyed models their class, if they have one in common."""
        classes = {type(model).__qualname__ for model in self.models.values()}
        return classes.pop() if len(classes) == 1 else type(self.handler).__qualname__

    @property
    def looks_at_elements(self) -> bool:
        """Whether the batch that an element joins depends on the element, as preprocessing leaves it."""
        config = self.batching
        return self.routed or config.sorts or config.sizes_are_weights or config.columnar

    @property
    def has_rows_in_elements(self) -> bool:
        """Whether an element holds many rows."""
        return self.prebatched or self.batching.columnar

    @property
    def may_wait(self) -> bool:
        """Whether elements may wait for elements of other bundles."""
        return bool(self.batching.max_batch_duration_secs) and not self.has_rows_in_elements

    def label(self, model: Any) -> str:
        """The model's name in metrics; empty if there is only one."""
        if self.rank:
            name = f"{FALLBACK}{self.rank}" if self.rank > 1 else FALLBACK
            return f"{name}-{model}" if self.routed else name
        if not self.routed:
            return ""
        return f"{model}-{self.refreshed[model].name}" if model in self.refreshed else str(model)

    def cache_key(self, model: Any) -> Any:
        """The key of a model in the model cache, where an old and a new version may be at the same time."""
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
        """The failure of an operation whose input was ``element``; ``source`` is what it was before preprocessing."""
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

    @property
    def is_one_of_several(self) -> bool:
        """Whether an element may be answered by this one or by another, so that predictions say by whom."""
        return self.has_fallback or self.rank > 0

    def answerer(self, model: Any) -> str:
        """Who answers, for predictions that do not say so themselves: a path, or a name."""
        return self._model_id(model) or type(self.models[model]).__qualname__

    def _model_id(self, model: Any) -> str | None:
        handler = self.models.get(model)
        own = getattr(handler, "__dict__", {})
        for path in map(own.get, _PATHS):
            if isinstance(path, str):
                return path
        return None if handler is None else self.label(model) or None


def make_plan(handler: Handler, batching: BatchingConfig | None = None) -> Plan:
    """Parses a handler; ``batching`` replaces its ``batch_elements_kwargs()``.

    Raises:
        ConfigurationError: the handler's batching options are wrong.
    """
    prebatched = handler.should_skip_batching()
    inner = _converted(bare(handler))
    keyed = _is_plainly_keyed(inner) and not prebatched
    routed = keyed and inner.unkeyed is None
    models = inner.cohorts if routed else {ONLY: inner.unkeyed if keyed else inner}
    measuring = None if prebatched else inner
    return Plan(
        handler=inner,
        preprocess=tuple(handler.get_preprocess_fns()),
        postprocess=tuple(handler.get_postprocess_fns()),
        models=models,
        keyed=keyed,
        routed=routed,
        prebatched=prebatched,
        remote=frozenset(name for name, model in models.items() if is_remote(model)),
        batching=batching or _batching(handler.batch_elements_kwargs(), handler, measuring, pairs=keyed and not routed),
        model_limit=inner.max_models if routed else None,
        own_batching=_own_batching(handler, models) if routed and batching is None else {},
    )


def is_remote(handler: Handler) -> bool:
    """Whether the handler sends requests to an endpoint, as a RemoteModelHandler does."""
    return hasattr(handler, "create_client") and hasattr(handler, "request")


def _batching(given: Mapping[str, Any], owner: Handler, model: Handler | None, *, pairs: bool) -> BatchingConfig:
    """The batching options that were ``given`` by ``owner``; the ``model`` may know the length of its examples."""
    config = BatchingConfig.from_kwargs(given, owner)
    length_fn = None if model is None else _default_length(model, given)
    if length_fn is None:
        return config
    return config.sorted_by(OfExample(length_fn, if_any=True) if pairs else length_fn, given.get("lookahead"))


def _default_length(handler: Handler, given: Mapping[str, Any]) -> Callable[[Any], float] | None:
    """The handler's own length function, if elements are to be sorted by it.

    Not if an option says how to measure elements; if batches have one element; or if elements wait for those of other
    bundles: of elements to be sorted as many would wait as are sorted together, where otherwise a batch suffices.

    Raises:
        ConfigurationError: the handler is to sort, and knows no length.
    """
    handler = getattr(handler, "unkeyed", None) or handler
    asked: bool | None = getattr(handler, "_sort_by_length", None)
    known = getattr(handler, "default_length_fn", None)
    length_fn: Callable[[Any], float] | None = known() if known else None
    if asked and length_fn is None and "length_fn" not in given:
        raise ConfigurationError(
            f"{type(handler).__qualname__} does not know the length of its examples, so sort_by_length=True says "
            "nothing: give it length_fn, a function from an example to its length."
        )
    if asked is False and "length_fn" in given:
        raise ConfigurationError("sort_by_length=False and length_fn contradict each other; leave one of them out.")
    is_measured = bool(_MEASURES & given.keys()) or given.get("max_batch_size") == 1
    waits = bool(given.get("max_batch_duration_secs")) and not asked
    return None if asked is False or is_measured or waits else length_fn


def sends_requests(handler: Handler) -> bool:
    """Whether the handler's batches, or elements, are requests that run side by side."""
    return isinstance(handler, RemoteModelHandler | EngineModelHandler) or is_async(handler.run_inference)


def is_async(method: Callable[..., Any]) -> bool:
    """Whether calling the method only makes a coroutine."""
    return inspect.iscoroutinefunction(method)


def _own_batching(handler: Handler, models: Mapping[Any, Handler]) -> dict[Any, BatchingConfig]:
    """The batching options of keyed models; the outer handler's options are the defaults."""
    given, configs = handler.batch_elements_kwargs(), {}
    for name, model in models.items():
        asked = model.batch_elements_kwargs()
        own = {option: value for option, value in asked.items() if option not in OF_THE_TRANSFORM}
        for option in own.keys() & {"element_size_fn", "length_fn"}:
            own[option] = OfExample(own[option])
        configs[name] = _batching({**given, **own}, model, model, pairs=True)
    return configs


def _converted(handler: Handler) -> Handler:
    """Converts a foreign handler through the plug-in that is registered for the module of one of its base classes."""
    if isinstance(handler, ModelHandler):
        return handler  # and looking for plug-ins takes tens of milliseconds
    modules = {cls.__module__ for cls in type(handler).__mro__}
    for plug_in in _converters():
        if plug_in.name in modules:
            handler = plug_in.load()(handler)
    return handler


@cache
def _converters() -> tuple[importlib.metadata.EntryPoint, ...]:
    """The plug-ins, cached: finding them reads the metadata of every installed package."""
    return tuple(importlib.metadata.entry_points(group="headrace.adopters"))


def _is_plainly_keyed(handler: Handler) -> bool:
    """Whether the runner may handle the keys itself: no subclass overrides what is done with them."""
    cls = type(handler)
    return isinstance(handler, KeyedModelHandler) and all(
        getattr(cls, method) is getattr(KeyedModelHandler, method) for method in ("run_inference", "load_model")
    )
