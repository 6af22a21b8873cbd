"""Handlers for elements with keys: (key, example) in, (key, prediction) out, one model or one for each set of keys."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from headrace.core.answer import SKIP, SomeSkipped, mark_skips, predictions_for
from headrace.core.beam_compat import with_beams_attributes
from headrace.core.conversion import places_by, predict_by_kind
from headrace.core.errors import ConfigurationError, UnknownKeyError, UnsupportedError
from headrace.core.handler import ExampleT, KeyT, ModelHandler, ModelT, PredictionT
from headrace.core.model_cache import ModelsOnDemand


@dataclass(frozen=True)
class KeyModelPathMapping(Generic[KeyT]):
    """Tells a KeyedModelHandler with many models to load the model of ``keys`` from ``update_path``."""

    keys: list[KeyT]
    update_path: str
    model_id: str = ""


class KeyModelMapping(Generic[KeyT, ExampleT, PredictionT, ModelT]):
    """Says that examples with any of ``keys`` go to the model of handler ``mh``."""

    def __init__(self, keys: list[KeyT], mh: ModelHandler[ExampleT, PredictionT, ModelT]) -> None:
        self.keys = keys
        self.mh = mh


def mappings_of(name_of: Mapping[Any, Any], handlers: Mapping[Any, Any]) -> list[KeyModelMapping[Any, Any, Any, Any]]:
    """The mappings behind a keyed handler: of the model's name for each key, and of its handler by that name."""
    keys_of: dict[Any, list[Any]] = {}
    for key, name in name_of.items():
        keys_of.setdefault(name, []).append(key)
    return [KeyModelMapping(keys, handlers[name]) for name, keys in keys_of.items()]


@with_beams_attributes
class _DelegatingHandler(ModelHandler[ExampleT, PredictionT, Any]):
    """Delegates most methods to the handler that it wraps; without one, behaves like ``ModelHandler``."""

    unkeyed: ModelHandler[Any, Any, Any] | None


def _delegated(name: str) -> Any:
    default = getattr(ModelHandler, name)

    @functools.wraps(default)
    def answer(self: _DelegatingHandler[Any, Any], *args: Any, **kwargs: Any) -> Any:
        if self.unkeyed is None:
            return default(self, *args, **kwargs)
        return getattr(self.unkeyed, name)(*args, **kwargs)

    return answer


for _name in (
    "load_model",
    "get_metrics_namespace",
    "get_resource_hints",
    "batch_elements_kwargs",
    "validate_inference_args",
    "update_model_path",
    "set_environment_vars",
    "share_model_across_processes",
    "model_copies",
    "override_metrics",
    "should_garbage_collect_on_timeout",
    "should_skip_batching",
):
    setattr(_DelegatingHandler, _name, _delegated(_name))


class KeyedModelHandler(
    _DelegatingHandler[tuple[KeyT, ExampleT], tuple[KeyT, PredictionT]], Generic[KeyT, ExampleT, PredictionT, ModelT]
):
    """Runs a handler for examples on (key, example) pairs; returns (key, prediction) pairs.

    With mappings, each model's batches follow its own handler's batching options, whose functions receive the example.
    If it has none, they follow this handler's, whose functions receive the pair. Environment variables of the
    mappings' handlers are set for the process; of several values, the last mapping's.

    Args:
        unkeyed: one handler for all keys, or a list of KeyModelMapping: a handler for each set of keys. A key may be
            listed twice in one mapping, but not in two.
        max_models_per_worker_hint: how many of the mappings' models a worker process may hold at a time; None: all.

    Raises:
        ConfigurationError: a handler has its own preprocessing or postprocessing (add it to this handler instead), a
            mapping has no keys, a key has two models, or an argument has a wrong type.
    """

    def __init__(
        self,
        unkeyed: ModelHandler[ExampleT, PredictionT, ModelT]
        | Sequence[KeyModelMapping[KeyT, ExampleT, PredictionT, ModelT]],
        max_models_per_worker_hint: int | None = None,
    ) -> None:
        hint = max_models_per_worker_hint
        if hint is not None and (not isinstance(hint, int) or hint < 1):
            raise ConfigurationError(f"max_models_per_worker_hint must be an int, at least 1, not {hint!r}.")
        self.max_models, self.unkeyed = max_models_per_worker_hint, None
        self.cohorts: dict[Any, ModelHandler[Any, Any, Any]] = {}
        """The handler of each model, by its name: the mapping's first key. Empty if one handler serves all keys."""
        self.cohort_of: dict[Any, Any] = {}
        """For each key, its model's name."""
        if isinstance(unkeyed, Sequence):
            if not unkeyed:
                raise ConfigurationError("KeyedModelHandler needs a handler, or at least one KeyModelMapping.")
            for mapping in unkeyed:
                self._add(mapping)
        else:
            _refuse_processing(unkeyed)
            self.unkeyed = unkeyed

    def cohort(self, key: Any) -> Any:
        """The name of the key's model: the first key of its mapping. Raises UnknownKeyError if there is none."""
        try:
            return self.cohort_of[key]
        except (KeyError, TypeError):
            raise UnknownKeyError(key) from None

    def load_model(self) -> Any:
        """Models that load on first use, one for each mapping; or the model of the one handler for all keys."""
        return super().load_model() if self.unkeyed else ModelsOnDemand(self.cohorts, self.max_models)

    def run_inference(
        self, batch: Sequence[tuple[KeyT, ExampleT]], model: Any, inference_args: dict[str, Any] | None = None
    ) -> Iterable[tuple[KeyT, PredictionT]]:
        """Predicts for each (key, example) pair; pairs of the same model share a call."""
        keys = [key for key, _ in batch]
        if self.unkeyed is not None:
            return _pair(self.unkeyed, keys, [example for _, example in batch], model, inference_args)

        def predict(alike: Sequence[tuple[KeyT, ExampleT]]) -> list[Any]:
            return self._pairs_of(self.cohort(alike[0][0]), alike, model, inference_args)

        return predict_by_kind(batch, map(self.cohort, keys), predict)  # type: ignore[no-any-return]

    def update_model_paths(self, model: Any, model_paths: Any = None) -> None:
        """Refuses newer models, which only Beam's own transform passes on."""
        if model_paths:
            what = "Replacing models of headrace.KeyedModelHandler in apache_beam's RunInference"
            raise UnsupportedError(what, "run it with headrace.beam.RunInference")

    def get_num_bytes(self, batch: Sequence[tuple[Any, Any]]) -> int:
        """Bytes of the keys (pickled) and of the examples, as their handlers count them."""
        keys = [key for key, _ in batch]
        total = len(pickle.dumps(tuple(keys)))
        if self.unkeyed is not None:
            return total + int(self.unkeyed.get_num_bytes([example for _, example in batch]))
        for name, positions in places_by(map(self.cohort, keys)).items():
            total += self.cohorts[name].get_num_bytes([batch[position][1] for position in positions])
        return total

    def get_metrics_namespace(self) -> str:
        """Beam's namespace for keyed models, or that of the one handler for all keys."""
        return super().get_metrics_namespace() if self.unkeyed else "BeamML_KeyedModels"

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Validates the arguments with every handler."""
        for handler in [self.unkeyed] if self.unkeyed else self.cohorts.values():
            handler.validate_inference_args(inference_args)

    def model_copies(self) -> int:
        """1 with mappings, whose handlers must not ask for more; otherwise what the one handler asks for."""
        if any(handler.model_copies() != 1 for handler in self.cohorts.values()):
            raise ConfigurationError(
                "KeyedModelHandler cannot map keys to several models when one of their handlers asks for several "
                "copies of its model; leave model_copies out of the mappings' handlers."
            )
        return super().model_copies() if self.unkeyed else 1

    def share_model_across_processes(self) -> bool:
        """True with mappings, as in Beam; otherwise what the one handler asks for."""
        return super().share_model_across_processes() if self.unkeyed else True

    def set_environment_vars(self) -> None:
        """Sets the variables of all handlers."""
        for handler in [self.unkeyed] if self.unkeyed else self.cohorts.values():
            handler.set_environment_vars()

    def should_garbage_collect_on_timeout(self) -> bool:
        """False with mappings, as in Beam."""
        return super().should_garbage_collect_on_timeout() if self.unkeyed else False

    def _pairs_of(
        self, name: Any, batch: Sequence[tuple[Any, Any]], models: Any, args: dict[str, Any] | None
    ) -> list[tuple[Any, Any]]:
        keys, examples = map(list, zip(*batch, strict=True))
        if not isinstance(models, ModelsOnDemand):  # Beam's RunInference has them in another process, behind a proxy
            return with_keys(keys, mark_skips(models.predict(name, examples, args)))
        with models.use(name) as model:
            return _pair(self.cohorts[name], keys, examples, model, args)

    def _add(self, mapping: KeyModelMapping[Any, Any, Any, Any]) -> None:
        if not hasattr(mapping, "mh"):
            raise ConfigurationError(f"KeyedModelHandler takes one handler or KeyModelMappings, not {mapping!r:.200}.")
        handler = mapping.mh
        _refuse_processing(handler)
        keys, is_text = mapping.keys, isinstance(mapping.keys, str | bytes)
        if is_text or not isinstance(keys, Sequence) or not all(isinstance(key, Hashable) for key in keys):
            cure = f": each letter would be a key; a single key is written [{keys!r:.200}]" if is_text else ""
            raise ConfigurationError(f"the keys of a KeyModelMapping are a list of hashables, not {keys!r:.200}{cure}.")
        if not mapping.keys:
            raise ConfigurationError(
                f"Empty list maps to model handler {handler}. All model handlers must have one or more associated keys."
            )
        name = mapping.keys[0]
        for key in mapping.keys:
            if self.cohort_of.setdefault(key, name) != name or name in self.cohorts:
                raise ConfigurationError(
                    f"key {key} maps to multiple model handlers. All keys must map to exactly one model handler."
                )
        self.cohorts[name] = handler


class MaybeKeyedModelHandler(
    _DelegatingHandler[ExampleT | tuple[KeyT, ExampleT], PredictionT | tuple[KeyT, PredictionT]],
    Generic[KeyT, ExampleT, PredictionT, ModelT],
):
    """Runs a handler on examples or on (key, example) pairs: every tuple must be a pair.

    Args:
        unkeyed: the handler for examples, whose type must not be a tuple; without pre- and postprocessing.
    """

    def __init__(self, unkeyed: ModelHandler[ExampleT, PredictionT, ModelT]) -> None:
        _refuse_processing(unkeyed)
        self.unkeyed: ModelHandler[Any, Any, Any] = unkeyed

    def run_inference(
        self,
        batch: Sequence[ExampleT | tuple[KeyT, ExampleT]],
        model: Any,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionT | tuple[KeyT, PredictionT]]:
        """Predicts for examples and for (key, example) pairs, in one call even if a batch has both."""
        if not any(isinstance(element, tuple) for element in batch):
            return self.unkeyed.run_inference(batch, model, inference_args)
        keys = [element[0] if isinstance(element, tuple) else None for element in batch]
        pairs = _pair(self.unkeyed, keys, _examples(batch), model, inference_args)
        return [
            pair if pair is SKIP or isinstance(element, tuple) else pair[1]
            for element, pair in zip(batch, pairs, strict=True)
        ]

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Bytes of the examples, and of the keys (pickled) if there are any."""
        keys = tuple(element[0] for element in batch if isinstance(element, tuple))
        return (len(pickle.dumps(keys)) if keys else 0) + self.unkeyed.get_num_bytes(_examples(batch))


def _examples(batch: Sequence[Any]) -> list[Any]:
    if any(isinstance(element, tuple) and len(element) != 2 for element in batch):
        raise not_pairs(element for element in batch if isinstance(element, tuple))
    return [element[1] if isinstance(element, tuple) else element for element in batch]


NO_PAIRS = frozenset((str, bytes, dict, set, frozenset))  # may unpack into two values, and are no (key, example) pairs


def not_pairs(elements: Iterable[Any]) -> TypeError:
    """The error for elements that should be (key, example) pairs."""
    wrong = next((one for one in elements if not isinstance(one, list | tuple) or len(one) != 2), None)
    why = "" if hasattr(wrong, "__iter__") else f": {type(wrong).__name__!r} object is not iterable"  # Beam's words
    return TypeError(f"a keyed handler takes (key, example) pairs, not {wrong!r:.200}{why}.")


def _pair(handler: Any, keys: Sequence[Any], examples: list[Any], model: Any, args: Any) -> list[Any]:
    """Predictions paired with their keys."""
    return with_keys(keys, mark_skips(predictions_for(handler, examples, model, args)))


def with_keys(keys: Sequence[Any], predictions: list[Any]) -> list[Any]:
    """(key, prediction) pairs; ``SKIP`` remains unpaired."""
    pairs = list(zip(keys, predictions, strict=True))
    if not isinstance(predictions, SomeSkipped):
        return pairs
    return SomeSkipped(SKIP if pair[1] is SKIP else pair for pair in pairs)


def within_pair(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What ``fn`` does to an example, or a prediction, done to the second part of a pair; it may skip it."""
    return functools.partial(_within_pair, fn)


def _within_pair(fn: Callable[[Any], Any], pair: tuple[Any, Any]) -> Any:
    key, value = pair
    made = fn(value)
    return SKIP if made is SKIP else (key, made)


@dataclass(frozen=True)
class OfExample:
    """Applies a size function for examples to a (key, example) pair."""

    function: Callable[[Any], float]
    if_any: bool = False
    """Whether what is no pair has length 1 and goes on to the model, where it fails with a better message."""

    def __call__(self, pair: Any) -> float:
        """The example's size, or 1."""
        try:
            example = pair[1]
        except (TypeError, LookupError):
            if self.if_any:
                return 1
            raise
        return self.function(example)


def _refuse_processing(handler: Any) -> None:
    if not hasattr(handler, "load_model") or isinstance(handler, type):
        raise ConfigurationError(f"a handler is needed, an object with load_model, not {handler!r:.200}.")
    if list(handler.get_preprocess_fns()) or list(handler.get_postprocess_fns()):
        raise ConfigurationError(
            f"{type(handler).__qualname__} has preprocessing or postprocessing functions and so cannot be made keyed; "
            "call with_preprocess_fn and with_postprocess_fn on the keyed handler around it instead."
        )
