"""``RunInference``: the transform, with the names and arguments of Beam's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsSideInput

from headrace.beam.gather import build_inference_step
from headrace.beam.monitoring import with_predictions, without_predictions
from headrace.beam.outputs import Outputs, outputs_of
from headrace.beam.refresh import as_model_updates
from headrace.beam.runner import on_engine
from headrace.beam.threshold import check_threshold
from headrace.beam.watch import watching
from headrace.core.clock import Clock
from headrace.core.config import BatchingConfig, RetryConfig
from headrace.core.errors import ConfigurationError
from headrace.core.handler import ExampleT, PredictionT
from headrace.core.result import Stage
from headrace.runtime.prepare import InferenceRequest, Placement, catching, isolated, prepare


class RunInferenceDLQ(NamedTuple):
    """The dead letters of a RunInference, by the operation that failed.

    A record is ``(element, (error type, its repr, lines of the traceback))``; ``failed_inferences`` holds a batch of
    one element, ``[element]``, in place of the element (where elements are batches themselves: the element).
    """

    failed_inferences: beam.PCollection
    failed_preprocessing: Sequence[beam.PCollection]
    """One for each preprocessing function, in the order in which they run."""
    failed_postprocessing: Sequence[beam.PCollection]
    """One for each postprocessing function, in the order in which they run."""


class RunInference(beam.PTransform, Generic[ExampleT, PredictionT]):
    """Runs a model over a PCollection of examples; gives the PCollection of its predictions.

    Each prediction keeps its own element's timestamp, windows and pane.

    Args:
        model_handler: says how to load the model and how to run it; Headrace's or Beam's.
        clock: an object with ``time_ns()``, with which loads and batches are measured.
        inference_args: extra arguments for the model's call; or a side input that has them, as ``beam.pvalue.AsDict``:
            each element gets those of its window, and the model loads when the first one comes.
        metrics_namespace: of the transform's metrics; the handler's own by default.
        model_identifier: transforms with the same identifier share one model in each process.
        use_model_manager: accepted; Headrace manages models either way.
        model_manager_args: accepted, without effect.
        placement: where the model lives: ``"process"``, ``"machine"``, ``"auto"`` or a PlacementConfig; by default
            as the handler's ``share_model_across_processes()`` and ``model_copies()`` say.
        batching: replaces what the handler's ``batch_elements_kwargs()`` asks for.
        retry: how often a call of the model that failed for a passing reason, as a lost connection, is tried again
            before anything else is; by default 3 tries within 45 seconds.
        isolate: whether the model lives in a host: a process of its own beside each worker process, which may hang,
            crash or run out of memory without harm; pre- and postprocessing run there, too.
        model_metadata_pcoll: tells of newer models: a ModelMetadata at a time, or for models by key a list of
            KeyModelPathMapping. A newer one is loaded beside the older, which goes on until it is there; where all
            elements are there already (bounded input), they wait for it.
        watch_model_pattern: a path or URI, with ``*``, ``?`` and ``[...]``: of the files that match it, the newest is
            the newer model, once one is newer than this transform. Each worker process looks for itself.
        monitoring_transform: is applied to a copy of the predictions, before they are postprocessed.
        kwargs: of ``watch_model_pattern``: ``interval``, in seconds between two looks (360), and ``stop_timestamp``,
            after which files are too late to count.

    Raises:
        ConfigurationError: something is wrong or not available; the message says what and what to do.
    """

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
        **kwargs: Any,
    ) -> None:
        super().__init__()
        _check_refresh(model_metadata_pcoll, watch_model_pattern, kwargs)
        self._arguments = inference_args if isinstance(inference_args, AsSideInput) else None
        known = inference_args if self._arguments is None else None
        self._spec = prepare(
            model_handler, InferenceRequest(known, model_identifier, placement, batching, retry, clock, isolate)
        )
        if watch_model_pattern:
            if self._spec.plan.routed:
                raise ConfigurationError(
                    "watch_model_pattern does not say which of the models by key a file is of: tell of newer ones with "
                    "model_metadata_pcoll, of lists of KeyModelPathMapping."
                )
            self._spec = replace(self._spec, watch=watching(watch_model_pattern, **kwargs))
        self._handler = model_handler
        self._metrics_namespace = metrics_namespace
        self._model_metadata_pcoll = model_metadata_pcoll
        self._monitoring_transform = monitoring_transform
        self._threshold: float | None = None
        """Set once exceptions are handled."""
        self._gives_skipped = False

    @classmethod
    def from_callable(cls, model_handler_provider: Callable[..., Any], **kwargs: Any) -> RunInference[Any, Any]:
        """For other languages' SDKs: a RunInference for the handler that ``model_handler_provider(**kwargs)`` makes."""
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
        """Gives bad elements to dead letters instead of failing; applied, it returns (predictions, RunInferenceDLQ).

        Of a batch that fails only the bad elements become dead letters: it is halved until they stand alone. After 5
        consecutive batches without a success a batch is given up as a whole, until one succeeds.

        Args:
            exc_class: which exceptions are handled.
            use_subprocess: the same as ``isolate`` at construction.
            threshold: the largest share of elements that may fail in any one operation before the pipeline does.
            timeout: the longest, in seconds, that one operation may take: preprocessing an element, inference on a
                batch, postprocessing a prediction; and the loading of a model. It implies ``isolate``. What takes
                longer is killed with its process; its elements are then tried one by one, and those that hang become
                dead letters (TimeoutError), after three more of them the rest of the batch too.

        Raises:
            ConfigurationError: something is wrong; the message says what and what to do.
        """
        if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            raise ConfigurationError(f"threshold must be a share of the elements, from 0 to 1, not {threshold!r}.")
        self._spec = catching(self._spec, exc_class)
        if use_subprocess or timeout is not None:
            self._spec = isolated(self._spec, timeout)
        self._threshold = threshold
        return self

    def with_skipped_elements(self) -> RunInference[ExampleT, PredictionT]:
        """Gives a PCollection of the elements for which an operation gave ``headrace.SKIP``; applied, it comes last.

        Each is what the operation was given, or, where the model is isolated, what its process was sent.
        """
        self._gives_skipped = True
        return self

    def annotations(self) -> dict[str, Any]:
        """What runners that know about models are told about this one."""
        cls = type(self._handler)
        monitoring = self._monitoring_transform
        return {
            **({} if monitoring is None else {"monitoring_transform": str(monitoring)}),
            "model_handler": str(self._handler),
            "model_handler_type": f"{cls.__module__}.{cls.__qualname__}",
            "model_identifier": self._spec.model_identifier,
            **super().annotations(),
        }

    def expand(self, pcoll: beam.PCollection) -> Any:
        """One ParDo; before it a buffer, where unbounded elements are to wait; beside it a check of the threshold."""
        spec = on_engine(replace(self._spec, transform=uuid.uuid4().hex), pcoll.pipeline)  # applied twice, it is two
        checks = self._threshold is not None and self._threshold < 1
        columnar = checks and spec.plan.batching.columnar
        if self._monitoring_transform is not None or columnar:
            spec = replace(spec, plan=with_predictions(spec.plan))
        refresh = None if self._model_metadata_pcoll is None else as_model_updates(self._model_metadata_pcoll)
        waiting, pardo = build_inference_step(pcoll, spec, self._metrics_namespace, refresh, self._arguments)
        pardo = pardo.with_resource_hints(**self._spec.plan.handler.get_resource_hints())
        if self._threshold is None and self._monitoring_transform is None and not self._gives_skipped:
            return waiting | "BeamML_RunInference" >> pardo
        outputs = outputs_of(waiting, pardo, spec.plan)
        if checks:
            check_threshold(pcoll, outputs, self._threshold or 0, columnar=columnar)
        if self._monitoring_transform is not None or columnar:
            outputs, predictions = without_predictions(self._spec.plan, outputs)
            if self._monitoring_transform is not None:
                _ = predictions | "BeamML_RunInference_MonitoringOutlet" >> self._monitoring_transform
        return self._chosen(outputs)

    def _chosen(self, outputs: Outputs) -> Any:
        """What the user has asked for."""
        failed, chosen = outputs.failed, [outputs.values]
        if self._threshold is not None:
            (inference,) = failed[Stage.INFERENCE]
            chosen.append(RunInferenceDLQ(inference, failed[Stage.PREPROCESSING], failed[Stage.POSTPROCESSING]))
        if self._gives_skipped:
            chosen.append(outputs.all_skipped())
        return tuple(chosen) if len(chosen) > 1 else outputs.values


def _check_refresh(pcoll: Any, pattern: str | None, kwargs: dict[str, Any]) -> None:
    unknown = sorted(set(kwargs) - {"interval", "stop_timestamp"})
    if unknown:
        raise ConfigurationError(
            f"RunInference got unknown arguments {unknown}; see its documentation for those it has."
        )
    if pcoll is not None and not isinstance(pcoll, beam.PCollection):
        raise ConfigurationError(f"model_metadata_pcoll must be a PCollection of ModelMetadata, not {pcoll!r}.")
    if pcoll is not None and pattern:
        raise ConfigurationError("give model_metadata_pcoll or watch_model_pattern, not both.")
    if kwargs and not pattern:
        raise ConfigurationError(f"{' and '.join(sorted(kwargs))} go with watch_model_pattern.")
