"""``RunInference``: the transform, with Beam's names and arguments."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypedDict, overload

import apache_beam as beam
from apache_beam.pvalue import AsSideInput

from headrace.beam.dofn import bound_to
from headrace.beam.element_types import ElementTypes, claim_element_types, infer_element_types, skipped_type
from headrace.beam.gather import build_inference_step
from headrace.beam.monitoring import carry_predictions, check_threshold, split_predictions
from headrace.beam.outputs import Outputs, apply_inference, for_batch_consumers
from headrace.beam.refresh import as_updates, watch_files
from headrace.beam.results import dead_letters_of
from headrace.core.clock import Clock
from headrace.core.config import BatchingConfig, Budget, CacheConfig, RetryConfig
from headrace.core.declared_type import PredictingHandler
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ExampleT, ModelHandler, PredictionT
from headrace.core.result import Stage
from headrace.core.spelling import constructor_arguments, unknown_arguments, warn_ignored
from headrace.runtime.prepare import InferenceRequest, Placement, catching, isolated, prepare
from headrace.runtime.spec import SessionSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack


class WatchOptions(TypedDict, total=False):
    """The arguments that go with ``watch_model_pattern``, for type checkers."""

    interval: float
    stop_timestamp: Any


class InferenceOptions(WatchOptions, total=False):
    """The keyword arguments of RunInference, for type checkers."""

    model_metadata_pcoll: beam.PCollection | None
    watch_model_pattern: str | None
    model_identifier: str | None
    use_model_manager: bool
    model_manager_args: dict[str, Any] | None
    monitoring_transform: beam.PTransform | None
    placement: Placement
    batching: BatchingConfig | None
    retry: RetryConfig | None
    isolate: bool
    fallback: Any
    cache: str | CacheConfig | None
    budget: Budget | None


class RunInference(
    beam.PTransform[beam.PCollection[ExampleT], beam.PCollection[PredictionT]], Generic[ExampleT, PredictionT]
):
    """Runs a model over a PCollection of examples; returns the PCollection of its predictions.

    Each prediction keeps its own element's timestamp, windows and pane. The output's element type is what Beam infers
    of postprocessing functions, or what the handler declares to predict; with keys a tuple of two.

    Args:
        model_handler: loads and runs the model; Headrace's or Beam's.
        clock: an object with ``time_ns()``, which times loads and batches.
        inference_args: extra arguments for the model's call, or a side input with them, such as
            ``beam.pvalue.AsDict``: each element gets those of its window, and the model loads with the first element.
        metrics_namespace: of the transform's metrics; the handler's own by default.
        model_identifier: transforms with the same identifier share one model in each process.
        use_model_manager: accepted; Headrace manages models either way.
        model_manager_args: accepted, without effect.
        placement: where the model lives: ``"process"``, ``"machine"``, ``"auto"`` or a PlacementConfig; by default
            according to the handler's ``share_model_across_processes()`` and ``model_copies()``.
        batching: replaces the handler's ``batch_elements_kwargs()``.
        retry: how often to retry a model call after a transient error, such as a lost connection; by default
            3 attempts within 45 seconds. Retries come before any other recovery.
        isolate: whether the model lives in a host: a process of its own beside each worker process, which may hang,
            crash or run out of memory without harm; preprocessing and postprocessing run there, too.
        fallback: another handler, for elements that the first one's model could not do, and for all while it does
            nothing but fail. It gets what the model got, and its predictions are postprocessed like the model's. Of a
            list of handlers each answers for what all before it could not do.
        cache: a file of predictions that were made before, on each worker's disk: they are not asked for again.
        budget: the prices of requests, and a limit for all worker processes of a machine, after which a BudgetError is
            raised.
        model_metadata_pcoll: model refresh: each element a ModelMetadata, or with models by key a list of
            KeyModelPathMapping. The older model serves until the newer one is loaded; bounded input waits for it.
        watch_model_pattern: a path or URI, with ``*``, ``?`` and ``[...]``. The newest matching file is the newer
            model, if it is newer than this transform. Each worker process looks for itself.
        monitoring_transform: is applied to a copy of the predictions, before they are postprocessed.
        kwargs: for ``watch_model_pattern``: ``interval``, the seconds between two looks (360), and ``stop_timestamp``:
            files modified later are ignored.

    Raises:
        ConfigurationError: an argument is wrong or not available; the message says what to do.
    """

    @overload
    def __init__(
        self,
        model_handler: ModelHandler[ExampleT, PredictionT, Any],
        clock: Clock = ...,
        inference_args: dict[str, Any] | AsSideInput | None = None,
        metrics_namespace: str | None = None,
        **options: Unpack[InferenceOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model_handler: PredictingHandler[ExampleT, PredictionT],
        clock: Clock = ...,
        inference_args: dict[str, Any] | AsSideInput | None = None,
        metrics_namespace: str | None = None,
        **options: Unpack[InferenceOptions],
    ) -> None: ...
    def __init__(
        self,
        model_handler: Any,
        clock: Clock = time,
        inference_args: dict[str, Any] | AsSideInput | None = None,
        metrics_namespace: str | None = None,
        *,
        model_metadata_pcoll: beam.PCollection | None = None,
        watch_model_pattern: str | None = None,
        model_identifier: str | None = None,
        use_model_manager: bool = False,
        model_manager_args: dict[str, Any] | None = None,
        monitoring_transform: beam.PTransform | None = None,
        placement: Placement = None,
        batching: BatchingConfig | None = None,
        retry: RetryConfig | None = None,
        isolate: bool = False,
        fallback: Any = None,
        cache: str | CacheConfig | None = None,
        budget: Budget | None = None,
        **kwargs: Unpack[WatchOptions],
    ) -> None:
        super().__init__()
        more: dict[str, Any] = {**kwargs}
        if more.pop("inference_batch_size", None) is not None:
            warn_ignored(self, "inference_batch_size", "give the model handler max_batch_size=... instead")
        _check_refresh(model_metadata_pcoll, watch_model_pattern, more)
        self._arguments = inference_args if isinstance(inference_args, AsSideInput) else None
        fixed = inference_args if self._arguments is None else None
        request = InferenceRequest(
            fixed, placement, batching, retry, isolate, None, fallback, cache, budget, model_identifier, clock
        )
        self._request = request
        self._changes: list[Callable[[SessionSpec], SessionSpec]] = []
        """What has been asked for besides the request."""
        self._model_handler = model_handler
        self._change(partial(_watching, pattern=watch_model_pattern, options=more))
        self._metrics_namespace = metrics_namespace
        self._model_metadata_pcoll = model_metadata_pcoll
        self._monitoring_transform = monitoring_transform
        self._threshold: float | None = None
        """None unless exceptions are handled."""
        self._with_skipped = False
        self._values_are_hinted = False
        """Whether the user has called with_output_types."""

    @property
    def _model_handler(self) -> Any:
        """Beam's name: subclasses and users read it, and replace the handler."""
        return self._handler

    @_model_handler.setter
    def _model_handler(self, handler: Any) -> None:
        self._handler, self._spec = handler, prepare(handler, self._request)
        for change in self._changes:
            self._spec = change(self._spec)

    def _change(self, change: Callable[[SessionSpec], SessionSpec]) -> None:
        self._spec = change(self._spec)
        self._changes.append(change)

    @classmethod
    def from_callable(cls, model_handler_provider: Callable[..., Any], **kwargs: Any) -> RunInference[Any, Any]:
        """A RunInference for the handler from ``model_handler_provider(**kwargs)``; for SDKs in other languages."""
        return cls(model_handler_provider(**kwargs))

    def with_monitoring_transform(self, monitoring_transform: beam.PTransform) -> RunInference[ExampleT, PredictionT]:
        """Sets ``monitoring_transform``; returns this transform."""
        self._monitoring_transform = monitoring_transform
        return self

    def with_exception_handling(
        self,
        *,
        exc_class: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        use_subprocess: bool = False,
        threshold: float = 1,
        timeout: float | None = None,
    ) -> RunInference[ExampleT, PredictionT]:
        """Turns bad elements into dead letters instead of failing; the transform then gives (values, RunInferenceDLQ).

        Only the bad elements of a failed batch become dead letters: the batch is halved until they stand alone. After 5
        consecutive batches without any success, failed batches are given up as a whole until one succeeds.

        Args:
            exc_class: the exceptions to handle.
            use_subprocess: the same as ``isolate`` at construction.
            threshold: the largest share of elements that may fail in any one operation before the pipeline fails.
            timeout: the longest that one operation may take, in seconds: preprocessing an element, inference on a
                batch, postprocessing a prediction, or loading a model. Implies ``isolate``. An operation that takes
                longer is killed with its process. The batch's elements are then tried one by one; those that hang
                become dead letters (TimeoutError), and after three more of them so does the rest of the batch.

        Raises:
            ConfigurationError: an argument is wrong; the message says what to do.
        """
        if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise ConfigurationError(f"threshold must be a share of the elements, from 0 to 1, not {threshold!r}.")
        self._change(partial(catching, exceptions=exc_class))
        if use_subprocess or timeout is not None:
            self._change(partial(isolated, timeout_secs=timeout, isolate=use_subprocess))
        self._threshold = threshold
        return self

    def with_skipped_elements(self) -> RunInference[ExampleT, PredictionT]:
        """Adds a last output: the elements for which an operation returned ``headrace.SKIP``.

        Each is the operation's input; if the model is isolated, what was sent to its process.
        """
        self._with_skipped = True
        return self

    def annotations(self) -> dict[str, Any]:
        """Describes the model, for runners that make use of it."""
        cls = type(self._handler)
        monitoring = self._monitoring_transform
        return {
            **({} if monitoring is None else {"monitoring_transform": str(monitoring)}),
            "model_handler": str(self._handler),
            "model_handler_type": f"{cls.__module__}.{cls.__qualname__}",
            "model_identifier": self._spec.model_identifier,
            **super().annotations(),
        }

    def with_output_types(self, type_hint: Any, **tagged: Any) -> RunInference[ExampleT, PredictionT]:
        """Sets the type of the values, in place of what is inferred or what the handler declares."""
        super().with_output_types(type_hint, **tagged)
        self._values_are_hinted = True
        return self

    def type_check_outputs(self, pvalueish: Any) -> None:
        """Compares the values with the hint; it says nothing of dead letters."""
        super().type_check_outputs(pvalueish[0] if isinstance(pvalueish, tuple) else pvalueish)

    def expand(self, pcoll: beam.PCollection) -> Any:
        """One ParDo; before it a buffer if unbounded elements wait, after it the check of the threshold."""
        types = infer_element_types(self._spec.plan, pcoll, [one.plan for one in self._spec.fallbacks])
        if self._values_are_hinted:
            types = types._replace(values=self.get_type_hints().simple_output_type(self.label))
        transform = uuid.uuid4().hex  # each application is a transform of its own
        spec = bound_to(pcoll.pipeline, replace(self._spec, transform=transform))
        checks = self._threshold is not None and self._threshold < 1
        columnar = checks and spec.plan.batching.columnar
        carries = self._monitoring_transform is not None or columnar
        if carries:
            spec = replace(spec, plan=carry_predictions(spec.plan))
        updates = None if self._model_metadata_pcoll is None else as_updates(self._model_metadata_pcoll)
        gathered, pardo = build_inference_step(
            pcoll, spec, self._metrics_namespace, updates, self._arguments, counts=checks
        )
        pardo = pardo.with_resource_hints(**self._spec.resource_hints)
        if self._threshold is None and self._monitoring_transform is None and not self._with_skipped:
            values = gathered | "BeamML_RunInference" >> pardo
            values.element_type = types.values
            return for_batch_consumers(values)
        outputs = apply_inference(gathered, pardo, spec.plan)
        if checks:
            check_threshold(outputs, self._threshold or 0, columnar=columnar)
        if carries:
            outputs, predictions = split_predictions(outputs)
            predictions.element_type = types.predictions
            if self._monitoring_transform is not None:
                _ = predictions | "BeamML_RunInference_MonitoringOutlet" >> self._monitoring_transform
        claim_element_types(outputs, types, self._spec.plan)
        return self._requested(outputs._replace(values=for_batch_consumers(outputs.values)), types)

    def _requested(self, outputs: Outputs, types: ElementTypes) -> Any:
        requested = [outputs.values]
        if self._threshold is not None:
            (inference,) = outputs.failed_in(Stage.INFERENCE)
            before, after = (outputs.failed_in(stage) for stage in (Stage.PREPROCESSING, Stage.POSTPROCESSING))
            requested.append(dead_letters_of(inference, before, after))
        if self._with_skipped:
            skipped = tuple(outputs.skipped.values()) | "Skipped" >> beam.Flatten()
            skipped.element_type = skipped_type(types)
            requested.append(skipped)
        return tuple(requested) if len(requested) > 1 else outputs.values


def _check_refresh(pcoll: Any, pattern: str | None, kwargs: Mapping[str, Any]) -> None:
    unknown = sorted(set(kwargs) - {"interval", "stop_timestamp"})
    if unknown:
        raise unknown_arguments("RunInference", unknown, constructor_arguments(RunInference))
    if pcoll is not None and not isinstance(pcoll, beam.PCollection):
        raise ConfigurationError(f"model_metadata_pcoll must be a PCollection of ModelMetadata, not {pcoll!r}.")
    if pcoll is not None and pattern:
        raise ConfigurationError("give model_metadata_pcoll or watch_model_pattern, not both.")
    if kwargs and not pattern:
        raise ConfigurationError(f"{' and '.join(sorted(kwargs))} go with watch_model_pattern.")


def _watching(spec: SessionSpec, pattern: str | None, options: Mapping[str, Any]) -> SessionSpec:
    if not pattern:
        return spec
    if spec.plan.routed:
        raise ConfigurationError(
            "watch_model_pattern cannot tell to which of the models by key a file belongs: announce newer "
            "models with model_metadata_pcoll, as lists of KeyModelPathMapping."
        )
    return replace(spec, watch=watch_files(pattern, **options))
