"""The contract: what a handler's author implements, and what the runtime calls.

Names, arguments, defaults and meanings are those of ``apache_beam.ml.inference.base.ModelHandler`` 2.77, so that a
handler written for one works with the other.
"""

from __future__ import annotations

import copy
import functools
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from headrace.core.beam_compat import constructed, describe_as, warn_of_beams_transform
from headrace.core.errors import ConfigurationError
from headrace.core.spelling import HANDLER_OPTIONS, constructor_arguments, unknown_arguments, warn_ignored

ModelT = TypeVar("ModelT")
ExampleT = TypeVar("ExampleT")
PreProcessT = TypeVar("PreProcessT")
PredictionT = TypeVar("PredictionT")
PostProcessT = TypeVar("PostProcessT")
KeyT = TypeVar("KeyT")


class HandlerCard(NamedTuple):
    """A handler's row in the documentation's table, a few words of Markdown each; and what the command line says."""

    example: str
    """What an example is: "a numpy array"."""
    prediction: str
    """What ``PredictionResult.inference`` contains."""
    weights: str
    """Where the weights live with ``large_model``: mapped into every process, or in one host, and why."""
    threads: str
    """Whether several threads may run one model at the same time."""
    extra: str
    """The extra of the handler's package that brings its framework; empty: none."""
    summary: str = ""
    """What the handler runs, in one line: "a PyTorch model; a row is a tensor"."""
    command: str = ""
    """For the example of ``headrace run`` in its description: an input and what goes with it, without ``--handler`` and
    ``--output``."""


class ModelHandler(Generic[ExampleT, PredictionT, ModelT]):
    """Loads a model and applies it to batches of examples.

    A subclass implements ``load_model`` and ``run_inference``; everything else has a useful default. A handler is
    pickled to the workers, so it holds paths and settings; the model itself is made by ``load_model`` and may be any
    Python object. A handler that also accepts columnar elements (``BatchingConfig.columnar``) has a method
    ``run_columns(columns, model, inference_args=None)``, which returns an array, or a dict of arrays, with one
    prediction for each row; ``takes`` says in which form rows of files and tables come there
    (``headrace.core.columns.Takes``). A handler whose model pads the examples of a batch may have a method
    ``default_length_fn()``, which returns the ``length_fn`` by which elements are sorted if no option says otherwise. A
    handler may have a method ``cache_key()``, which returns plain values that decide its predictions, for ``cache=``;
    by default its class, with the code of its methods, and its attributes do, without secrets.

    Args:
        min_batch_size: a target for the number of examples in a batch; the last batch of a bundle may be smaller.
        max_batch_size: never exceeded.
        max_batch_duration_secs: longest time, in seconds, that an element of unbounded input waits for others.
        max_batch_weight: largest sum of ``element_size_fn`` in a batch; requires ``element_size_fn``.
        element_size_fn: the weight of an element.
        batch_length_fn: Beam's name for ``length_fn``.
        batch_bucket_boundaries: Beam's name for ``bucket_boundaries``.
        large_model: whether the machine should hold one copy of the model for all worker processes.
        model_copies: the exact number of copies on the machine; implies ``large_model``.
        kwargs: further arguments by name. ``length_fn``: the length of an element; elements of similar length are
            batched together. ``bucket_boundaries``: sorted positive lengths at which buckets begin; requires
            ``length_fn``. ``sort_by_length``: False if elements are to stay in order of arrival although the handler
            has a ``default_length_fn``. ``env_vars``: a dict of environment variables set before the
            model is loaded.

    Raises:
        ConfigurationError: an unknown argument, which Beam would ignore, or one given under both its names; or
            ``model_copies`` is not a positive int.
    """

    card: ClassVar[HandlerCard | None] = None
    """The handler's row in the documentation's table of handlers."""
    mappable: bool | None = None
    """Whether processes can map the weights of a loaded model. True: the first worker process that needs a shared model
    loads it for all. False: a process of its own does. None: the worker tries it, where the machine has no GPU."""
    _ignored_arguments: ClassVar[Mapping[str, str]] = {}
    """Arguments that Beam ignores and published pipelines give: a warning says to do what is listed here instead."""

    def __init__(
        self,
        *,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_duration_secs: int | None = None,
        max_batch_weight: int | None = None,
        element_size_fn: Callable[[Any], int] | None = None,
        batch_length_fn: Callable[[Any], int] | None = None,
        batch_bucket_boundaries: list[int] | None = None,
        large_model: bool = False,
        model_copies: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = {
            "min_batch_size": min_batch_size,
            "max_batch_size": max_batch_size,
            "max_batch_duration_secs": max_batch_duration_secs,
            "max_batch_weight": max_batch_weight,
            "element_size_fn": element_size_fn,
            "length_fn": batch_length_fn,
            "bucket_boundaries": batch_bucket_boundaries,
        }
        self._env_vars = kwargs.pop("env_vars", {})
        self._sort_by_length = kwargs.pop("sort_by_length", None)
        for name in sorted(kwargs.keys() & self._ignored_arguments.keys()):
            del kwargs[name]
            warn_ignored(self, name, self._ignored_arguments[name])
        self._batching_kwargs = _merged(type(self), options, kwargs)
        if self._sort_by_length not in (None, True, False):
            raise ConfigurationError(f"sort_by_length must be True or False, not {self._sort_by_length!r}.")
        for name, value in self._env_vars.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise ConfigurationError(f"env_vars must map strings to strings, not {name!r} to {value!r}.")
        if model_copies is not None and (type(model_copies) is not int or model_copies < 1):
            raise ConfigurationError(f"model_copies must be an int, at least 1, not {model_copies!r}.")
        self._large_model = large_model
        self._model_copies = model_copies
        self._share_across_processes = large_model or model_copies is not None

    def load_model(self) -> ModelT:
        """Makes the model, ready to predict. Called once per process (or machine), never at construction."""
        # Not abstract, as in Beam: handlers that take over a method on the instance can then be made all the same.
        raise NotImplementedError(f"{type(self).__qualname__} does not implement load_model, which makes the model.")

    def run_inference(
        self, batch: Sequence[ExampleT], model: ModelT, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionT]:
        """Predicts a batch.

        Args:
            batch: at least one example.
            model: what ``load_model`` returned.
            inference_args: extra arguments for the model's call, given to ``RunInference``.

        Returns:
            One prediction for each example, in order; may be a generator. ``headrace.SKIP`` in place of a prediction
            leaves the example without an output.
        """
        raise NotImplementedError(
            f"{type(self).__qualname__} does not implement run_inference, which returns a prediction for each example "
            "of a batch."
        )

    def get_num_bytes(self, batch: Sequence[ExampleT]) -> int:
        """Bytes of data in a batch; by default the length of its pickle."""
        buffers: list[pickle.PickleBuffer] = []
        header = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
        return len(header) + (sum(buffer.raw().nbytes for buffer in buffers) if buffers else 0)

    def get_metrics_namespace(self) -> str:
        """Namespace of the transform's metrics."""
        return "RunInference"

    def get_resource_hints(self) -> dict[str, Any]:
        """Beam's resource hints (``min_ram``, ``accelerator``, ...) for the transform."""
        warn_of_beams_transform(self)
        return {}

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Options of ``apache_beam.BatchElements``, plus ``max_batch_weight``."""
        return getattr(self, "_batching_kwargs", {})

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raises ValueError for arguments that ``run_inference`` would not accept."""

    def update_model_path(self, model_path: str | None = None) -> None:
        """Makes the next ``load_model`` load from ``model_path``; for handlers with one model."""

    def update_model_paths(self, model: ModelT, model_paths: Any = None) -> None:
        """Like ``update_model_path``, for handlers with several models."""

    def get_preprocess_fns(self) -> list[Callable[[Any], Any]]:
        """Functions applied to each element before batching, in the order in which they run."""
        return []

    def get_postprocess_fns(self) -> list[Callable[[Any], Any]]:
        """Functions applied to each prediction, in the order in which they run."""
        return []

    def should_skip_batching(self) -> bool:
        """Whether each element already is a batch."""
        warn_of_beams_transform(self)
        return False

    def set_environment_vars(self) -> None:
        """Sets the environment variables given as ``env_vars``; called before ``load_model``."""
        os.environ.update(getattr(self, "_env_vars", {}))

    def with_preprocess_fn(
        self, fn: Callable[[PreProcessT], ExampleT]
    ) -> ModelHandler[PreProcessT, PredictionT, ModelT]:
        """A copy of this handler whose elements go through ``fn`` first.

        Of several functions the last one added runs first: each maps to what the handler so far accepted. An element
        for which one returns ``headrace.SKIP`` goes no further, and has no output.
        """
        return _changed(self, "with_preprocess_fn", [fn], get_preprocess_fns=[fn, *self.get_preprocess_fns()])

    def with_postprocess_fn(
        self, fn: Callable[[PredictionT], PostProcessT]
    ) -> ModelHandler[ExampleT, PostProcessT, ModelT]:
        """A copy of this handler whose predictions go through ``fn``; of several, the first one added runs first.

        A prediction for which it returns ``headrace.SKIP`` has no output.
        """
        return _changed(self, "with_postprocess_fn", [fn], get_postprocess_fns=[*self.get_postprocess_fns(), fn])

    def with_no_batching(self) -> ModelHandler[Any, PredictionT, ModelT]:
        """A copy of this handler whose elements are batches, passed to ``run_inference`` unchanged.

        Preprocessing functions then receive a batch. To get rid of only the batch dimension, use ``max_batch_size=1``.
        """
        return _changed(self, "with_no_batching", [], should_skip_batching=True)

    def share_model_across_processes(self) -> bool:
        """Whether one copy of the model should serve all worker processes of a machine."""
        return getattr(self, "_share_across_processes", False)

    def model_copies(self) -> int:
        """How many copies of a shared model the machine should hold."""
        return getattr(self, "_model_copies", None) or 1

    def override_metrics(self, metrics_namespace: str = "") -> bool:
        """Whether the handler reports metrics itself, so that ``RunInference`` reports none."""
        return False

    def should_garbage_collect_on_timeout(self) -> bool:
        """Whether to drop and reload a model whose batch timed out."""
        return self.share_model_across_processes()


def _merged(cls: type, options: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The batching options that were given, whichever of their two names was used."""
    for name in more.keys() & {"length_fn", "bucket_boundaries"}:
        if options[name] is not None:
            raise ConfigurationError(f"{cls.__qualname__}: batch_{name} and {name} are the same; give one of them.")
    unknown = sorted(more.keys() - options.keys())
    if unknown:
        raise unknown_arguments(cls.__qualname__, unknown, constructor_arguments(cls).union(HANDLER_OPTIONS))
    return {name: value for name, value in {**options, **more}.items() if value is not None}


def _changed(handler: Any, method: str, functions: Sequence[Any], **answers: Any) -> ModelHandler[Any, Any, Any]:
    for function in functions:
        if not callable(function):
            raise ConfigurationError(f"a preprocessing or postprocessing function must be callable, not {function!r}.")
    changed: ModelHandler[Any, Any, Any] = _answering(handler, **answers)
    return describe_as(changed, handler, method, *functions)


def bare(handler: Any) -> Any:
    """A copy of a handler, Headrace's or Beam's, without its preprocessing, postprocessing and ``with_no_batching``."""
    return _answering(handler, get_preprocess_fns=[], get_postprocess_fns=[], should_skip_batching=False)


def _answering(handler: Any, **answers: Any) -> Any:
    """A copy of ``handler`` on which each named method returns a fixed answer, whichever class defined it."""
    changed = copy.copy(constructed(handler))
    for method, answer in answers.items():
        object.__setattr__(changed, method, functools.partial(copy.copy, answer))  # works for frozen dataclasses, too
    return changed
