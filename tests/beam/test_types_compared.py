"""The element types of RunInference beside those of Beam's, for every wrapper and way to run: never weaker.

Beam infers types through pre- and postprocessing functions, and knows nothing of the model: every prediction is Any.
Headrace goes on from what the handler declares, so what Beam calls Any, or Tuple[Any, ...], has a type here.
"""

# Beam takes annotations for type hints, but not annotations that are strings: no import of those from __future__.
import sys
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam import typehints
from apache_beam.ml.inference import base
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsDict
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.typehints import is_consistent_with

import headrace.beam
from headrace.beam.beam_handlers import EitherResult

KEYED = [("k", "a"), ("l", "bb")]
TEXTS = ["a", "bb"]


class Sentence(NamedTuple):
    text: str


def to_sentence(prediction: Any) -> Sentence:
    return Sentence(str(prediction))


def to_text(number: int) -> str:
    return str(number)


def results(module, **options):
    """A handler derived from either module's ModelHandler; it declares the module's PredictionResult."""

    class Results(module.ModelHandler[str, module.PredictionResult, Any]):
        def load_model(self):
            return len

        def run_inference(self, batch, model, inference_args=None):
            return [module.PredictionResult(text, model(text)) for text in batch]

        def validate_inference_args(self, inference_args):
            pass

        def batch_elements_kwargs(self):
            return options

    return Results()


def keyed(module):
    return module.KeyedModelHandler(results(module))


def mapped(module):
    mappings = [module.KeyModelMapping(["k"], results(module)), module.KeyModelMapping(["l"], results(module))]
    return module.KeyedModelHandler(mappings)


def maybe(module):
    return module.MaybeKeyedModelHandler(results(module))


def rows(result):
    return beam.Row(length=len(result.example), text="x")


PAIR = typehints.Tuple[str, EitherResult]
HANDLERS = {
    "results": (TEXTS, results, EitherResult),
    "keyed": (KEYED, keyed, PAIR),
    "mapped": (KEYED, mapped, PAIR),
    "maybe keyed": (KEYED, maybe, typehints.Any),
    "preprocessed": ([1, 2], lambda m: results(m).with_preprocess_fn(to_text), EitherResult),
    "preprocessed pairs": (
        [(1, "a")],
        lambda m: keyed(m).with_preprocess_fn(lambda pair: (str(pair[0]), pair[1])),
        PAIR,
    ),
    "postprocessed twice": (TEXTS, lambda m: results(m).with_postprocess_fn(len).with_postprocess_fn(to_text), str),
    "postprocessed to rows": (
        TEXTS,
        lambda m: results(m).with_postprocess_fn(rows),
        RowTypeConstraint.from_fields([("length", int), ("text", str)]),
    ),
    "postprocessed pairs": (
        KEYED,
        lambda m: keyed(m).with_postprocess_fn(lambda pair: (pair[0], str(pair[1]))),
        typehints.Tuple[str, str],
    ),
    "pre- and postprocessed": (
        [1, 2],
        lambda m: results(m).with_preprocess_fn(to_text).with_postprocess_fn(to_sentence),
        Sentence,
    ),
    "batches": ([TEXTS], lambda m: results(m).with_no_batching(), EitherResult),
    "waiting": (TEXTS, lambda m: results(m, max_batch_duration_secs=1), EitherResult),
}


def types_of(module, elements, handler):
    """The types of the values and of each operation's dead letters; and of the values if no exceptions are handled."""
    pcoll = beam.Pipeline(runner=FnApiRunner()) | beam.Create(elements)
    values, dead = pcoll | module.RunInference(handler(module)).with_exception_handling()
    failed = [*dead.failed_preprocessing, dead.failed_inferences, *dead.failed_postprocessing]
    bare = pcoll | "Bare" >> module.RunInference(handler(module))
    return [values.element_type, *(one.element_type or typehints.Any for one in failed), bare.element_type]


@pytest.mark.parametrize(("elements", "handler", "expected"), HANDLERS.values(), ids=HANDLERS)
def test_types_are_never_weaker_than_beams(elements, handler, expected):
    ours, theirs = (types_of(module, elements, handler) for module in (headrace.beam, base))
    assert ours[0] == ours[-1] == expected
    assert len(ours) == len(theirs)
    for own, beams in zip(ours, theirs, strict=True):
        assert is_consistent_with(own, beams)
        assert own != typehints.Any or beams == typehints.Any


def updates(pipeline):
    return pipeline | "Updates" >> beam.Create([headrace.beam.ModelMetadata("b", "b")])


def arguments(pipeline):
    return AsDict(pipeline | "Arguments" >> beam.Create([("a", 1)]))


@pytest.mark.parametrize("duration", [{}, {"max_batch_duration_secs": 1}], ids=["direct", "waiting"])
@pytest.mark.parametrize(
    "option",
    [
        None,
        ("model_metadata_pcoll", updates),
        ("inference_args", arguments),
        ("monitoring_transform", lambda _: beam.Map(print)),
        ("watch_model_pattern", lambda _: "/tmp/*"),
    ],
    ids=lambda option: option[0] if option else "plain",
)
def test_types_are_kept_on_a_stream(duration, option):
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(streaming=True))
    options = {option[0]: option[1](pipeline)} if option else {}
    handler = results(headrace.beam, **duration).with_postprocess_fn(to_sentence)
    texts = pipeline | test_stream.TestStream().add_elements(TEXTS).with_output_types(str)
    assert (texts | headrace.beam.RunInference(handler, **options)).element_type is Sentence


def test_type_of_predictions_is_ours_alone_while_beams_module_is_not_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, base.__name__)
    texts = beam.Pipeline() | beam.Create(TEXTS)
    assert (texts | headrace.beam.RunInference(results(headrace.beam))).element_type is headrace.PredictionResult
