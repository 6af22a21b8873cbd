"""RunInference on Apache Beam, with every public name of ``apache_beam.ml.inference.base``.

A pipeline moves over by changing ``from apache_beam.ml.inference.base import`` to ``from headrace.beam import``.

::

    building the pipeline              transform    RunInference: arguments into a spec, a spec into steps
      transform -> gather                gather       unbounded input: chunks -> buffer -> batches; else nothing
                -> element_types         element_types: the types of all outputs, for Beam's checks and coders
                -> outputs, results      outputs      the PCollections of values, dead letters, skipped elements
                                         results      RunInferenceDLQ, its rows; a page of a pipeline's metrics
                -> monitoring            monitoring   predictions for a monitoring transform; counts for a threshold
                -> refresh               refresh      newer models, from a side input or files
    in the worker process
      gather.ChunkDoFn                   buffer       a bundle's elements for one buffer, each encoded;
        -> buffer.BufferDoFn                          Beam's state and timers: when a batch is full or due
        -> gather.GatheredInferenceDoFn               the same as InferenceDoFn, for a batch at a time
      dofn.InferenceDoFn                 dofn         elements -> a bundle (runtime: open_worker, switching_worker)
             -> outputs                  outputs      what a shuffle can encode, of dead letters and skipped elements
             -> recorder                 recorder     events into Beam's metrics, a handler's own in a model host, too
    for users: filesystems.ReadFiles   for other rooms, by entry point: beam_handlers, filesystems
      embeddings                         Embeddings: a RunInference as a step of MLTransform, for Beam's RAG types
      lancedb_sink                       LanceDBWriteConfig: what they hold, into a vector store
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from headrace.core.errors import RateLimitExceeded
from headrace.core.handler import ExampleT, KeyT, ModelHandler, ModelT, PostProcessT, PredictionT, PreProcessT
from headrace.core.keyed import KeyedModelHandler, KeyModelMapping, KeyModelPathMapping, MaybeKeyedModelHandler
from headrace.core.remote import ElementFailure, ElementRetry, RemoteModelHandler
from headrace.core.result import ModelMetadata, PredictionResult
from headrace.failures import device as _device

if TYPE_CHECKING:
    from collections.abc import Callable

    from apache_beam.ml.inference.base import load_model_status
    from apache_beam.ml.inference.utils import WatchFilePattern

    from headrace.beam.embeddings import Embeddings
    from headrace.beam.filesystems import ReadFiles
    from headrace.beam.lancedb_sink import LanceDBWriteConfig
    from headrace.beam.results import DeadLetterRows, RunInferenceDLQ, report
    from headrace.beam.transform import RunInference

_LAZY = {
    "DeadLetterRows": "headrace.beam.results",
    "Embeddings": "headrace.beam.embeddings",
    "LanceDBWriteConfig": "headrace.beam.lancedb_sink",
    "ReadFiles": "headrace.beam.filesystems",
    "RunInference": "headrace.beam.transform",
    "RunInferenceDLQ": "headrace.beam.results",
    "WatchFilePattern": "apache_beam.ml.inference.utils",
    "load_model_status": "apache_beam.ml.inference.base",
    "report": "headrace.beam.results",
}
"""The names that need Beam, some of them Beam's own: model hosts import this package and should not import Beam."""

__all__ = [
    "DeadLetterRows",
    "ElementFailure",
    "ElementRetry",
    "Embeddings",
    "ExampleT",
    "KeyModelMapping",
    "KeyModelPathMapping",
    "KeyT",
    "KeyedModelHandler",
    "LanceDBWriteConfig",
    "MaybeKeyedModelHandler",
    "ModelHandler",
    "ModelMetadata",
    "ModelT",
    "OOMProtectedFn",
    "PostProcessT",
    "PreProcessT",
    "PredictionResult",
    "PredictionT",
    "RateLimitExceeded",
    "ReadFiles",
    "RemoteModelHandler",
    "RunInference",
    "RunInferenceDLQ",
    "WatchFilePattern",
    "load_model_status",
    "report",
]


class OOMProtectedFn:
    """A function that frees torch's cached memory if it runs out of GPU memory; the error is raised all the same."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        try:
            return self.func(*args, **kwargs)
        except Exception as error:
            if "out of memory" in str(error) and "CUDA" in str(error):
                logging.getLogger(__name__).warning("CUDA ran out of memory; freeing cached memory.")
                _device.free_memory()
            raise


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
