"""``Embeddings``: any handler that turns texts into vectors, as a step of MLTransform and for Beam's RAG types."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import cloudpickle
import numpy as np
from apache_beam.ml.rag.embeddings.base import create_rag_adapter
from apache_beam.ml.transforms.base import EmbeddingsManager, EmbeddingTypeAdapter

from headrace.beam.results import dead_letters_of
from headrace.beam.transform import InferenceOptions, RunInference
from headrace.core.errors import ConfigurationError
from headrace.core.handler import bare
from headrace.core.keyed import KeyedModelHandler, within_pair
from headrace.core.result import ErrorRecord, PredictionResult
from headrace.core.transferable import short_repr

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Embeddings(EmbeddingsManager):
    """Embeds texts with a handler, in ``MLTransform``: ``MLTransform(...).with_transform(Embeddings(handler))``.

    Elements are Beam's ``EmbeddableItem`` (``Chunk``), whose ``embedding`` is set, or with ``columns`` dicts or Beam
    rows. Each text is an element of ``RunInference``, with all that this does for one: batches, retries, isolation.
    With ``MLTransform.with_exception_handling()`` only the rows at fault fail. The input stays as it was.

    Args:
        handler: predicts a vector for a text: a list or array of numbers, or a PredictionResult with one.
        columns: with names of fields, their texts are replaced by vectors, one field after the other.
        type_adapter: for elements of other types; its functions get one element at a time, and ``input_fn`` returns
            what the handler takes, a text or not.
        inference_args: extra arguments for the model's call.
        options: the other keyword arguments of ``RunInference``, such as ``isolate`` or ``cache``.

    Raises:
        ConfigurationError: an argument is wrong; the message says what to do.
    """

    def __init__(
        self,
        handler: Any,
        columns: Sequence[str] | str | None = None,
        type_adapter: EmbeddingTypeAdapter | None = None,
        *,
        inference_args: dict[str, Any] | None = None,
        **options: Unpack[InferenceOptions],
    ) -> None:
        names = [columns] if isinstance(columns, str) else columns
        if names is not None and (not names or type_adapter is not None):
            raise ConfigurationError("Embeddings take columns, at least one, or a type_adapter.")
        adapter = (type_adapter or create_rag_adapter()) if names is None else None
        super().__init__(columns=names and list(names), type_adapter=adapter, inference_args=inference_args)
        self.handler, self.options = handler, options

    def get_ptransform_for_processing(self, **kwargs: Any) -> beam.PTransform:
        """One RunInference for each column."""
        of_columns = {name: EmbeddingsManager(columns=[name]).type_adapter for name in self.columns or ()}
        return _Embed(self.handler, of_columns or {"items": self.type_adapter}, self.inference_args, self.options)


class _Embed(beam.PTransform):
    """Embeds with each adapter in turn; all dead letters are in ``failed_inferences``, the only ones MLTransform reads.

    Each is ``([element], error)``.
    """

    def __init__(self, handler: Any, adapters: dict[str, Any], arguments: Any, options: InferenceOptions) -> None:
        super().__init__()
        self._made_with = handler, adapters, arguments, options
        shared: Any = {"model_identifier": uuid.uuid4().hex, **options} if len(adapters) > 1 else options
        self._runs = {
            f"Embed {name}": RunInference(_embedding(handler, one), inference_args=arguments, **shared)
            for name, one in adapters.items()
        }
        self._catches = False

    def __reduce__(self) -> Any:
        """Pickled as a whole, for MLTransform's artefacts: jsonpickle loses functions that have no name."""
        return _embed, (cloudpickle.dumps(self._made_with),)

    def with_exception_handling(self, **options: Any) -> _Embed:
        """Turns bad elements into dead letters, as ``RunInference.with_exception_handling`` does."""
        for run in self._runs.values():
            run.with_exception_handling(**options)
        self._catches = True
        return self

    def annotations(self) -> dict[str, Any]:
        """Names the handler, for MLTransform's dead letters."""
        return {"model_handler": str(self._made_with[0]), **super().annotations()}

    def expand(self, elements: beam.PCollection) -> Any:
        """A RunInference for each adapter."""
        failed: list[beam.PCollection] = []
        for label, run in self._runs.items():
            elements = elements | label >> run
            if self._catches:
                elements, dead = elements
                first, *others = dead.failed_preprocessing
                keyed = [*others, dead.failed_inferences, *dead.failed_postprocessing]
                failed.append(first | f"{label}: 0" >> beam.Map(_as_it_came, False))
                failed += [one | f"{label}: {n}" >> beam.Map(_as_it_came, True) for n, one in enumerate(keyed, 1)]
        return (elements, dead_letters_of(failed | beam.Flatten(), (), ())) if self._catches else elements


def _embed(made_with: bytes) -> _Embed:
    return _Embed(*cloudpickle.loads(made_with))


def _embedding(handler: Any, adapter: Any) -> Any:
    """The handler with elements as keys, from and to which the adapter takes texts and vectors."""
    made: Any = KeyedModelHandler(bare(handler))
    for before in reversed(handler.get_preprocess_fns()):
        made = made.with_preprocess_fn(within_pair(before))
    for after in handler.get_postprocess_fns():
        made = made.with_postprocess_fn(within_pair(after))
    return made.with_preprocess_fn(partial(_keyed, adapter)).with_postprocess_fn(partial(_embedded, adapter))


def _keyed(adapter: Any, element: Any) -> tuple[Any, Any]:
    (text,) = adapter.input_fn([element])
    return element, text


def _embedded(adapter: Any, pair: tuple[Any, Any]) -> Any:
    element, prediction = pair
    vector = np.asarray(prediction.inference if isinstance(prediction, PredictionResult) else prediction)
    if vector.ndim != 1 or not vector.size or vector.dtype.kind not in "fiu":
        raise TypeError(f"a vector is a list of numbers, not {short_repr(prediction)}: use with_postprocess_fn.")
    (made,) = adapter.output_fn([copy.copy(element)], [vector.tolist()])  # adapters write into what they are given
    return made


def _as_it_came(record: tuple[Any, ErrorRecord], has_key: bool) -> tuple[list[Any], ErrorRecord]:
    """The dead letter of the element, rather than of what an operation was given."""
    found, error = record
    operand = found[0] if error.wrapped else found
    return [operand[0] if has_key else operand], ErrorRecord(error, **{**vars(error), "key": None, "wrapped": True})
