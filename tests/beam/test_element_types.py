"""The element types of what RunInference gives out, and who uses them. Pipelines here are made, and most never run.

Beam infers types through pre- and postprocessing functions, and knows nothing of the model: every prediction is Any.
Headrace goes on from what the handler declares, so what Beam calls Any, or Tuple[Any, ...], has a type here.
"""

# Beam takes annotations for type hints, but not annotations that are strings: no import of those from __future__.
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam import typehints
from apache_beam.dataframe.schemas import generate_proxy
from apache_beam.ml.inference import base
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import DirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints import TypeCheckError
from apache_beam.typehints.typehints import is_consistent_with

import headrace.beam
from headrace import ModelHandler, PredictionResult
from headrace.beam import DeadLetterRows, KeyedModelHandler, RunInference
from headrace.beam.beam_handlers import EitherResult
from headrace.beam.element_types import AnyEncoding
from toys import Acting

ERROR = typehints.Tuple[type, str, typehints.List[str]]


class Sentence(NamedTuple):
    text: str


def to_sentence(prediction: Any) -> Sentence:
    return Sentence(str(prediction))


class Lengths(ModelHandler[str, float, Any]):
    """Declares and predicts floats."""

    def load_model(self):
        return len

    def run_inference(self, batch, model, inference_args=None):
        return [float(model(text)) for text in batch]


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


def parsed(line: str) -> int:
    return int(line)


def of_number(number: int) -> str:
    return str(number)


@pytest.fixture
def pipeline():
    return beam.Pipeline(runner=FnApiRunner())


@pytest.fixture
def texts(pipeline):
    return pipeline | beam.Create(["a", "bb"])


def test_type_is_the_one_that_the_handler_declares_or_a_function_makes_of_it_without_skips(texts):
    assert (texts | RunInference(Lengths())).element_type is float
    handler = Lengths().with_postprocess_fn(lambda length: headrace.SKIP if length == 1 else str(length))
    assert (texts | "Skipping" >> RunInference(handler)).element_type is str


def test_type_given_by_the_user_replaces_the_declared_one(texts):
    values, dead = texts | RunInference(Lengths()).with_output_types(int).with_exception_handling()
    assert values.element_type is int
    assert dead.failed_inferences.element_type.tuple_types[1] == ERROR


def test_functions_for_either_result_take_the_predictions(texts):
    def ours(result: PredictionResult) -> int:
        return result.inference

    def beams(result: base.PredictionResult) -> int:
        return result.inference

    values = texts | RunInference(results(headrace.beam))
    assert (values | beam.Map(ours)).element_type is (values | beam.Map(beams)).element_type is int
    with pytest.raises(TypeCheckError, match="PCollections of type"):
        _ = values | beam.Map(parsed)


def test_functions_are_checked_against_elements_and_each_other_not_against_the_handler(texts):
    with pytest.raises(TypeCheckError, match="function of_number of RunInference does not take elements of type"):
        _ = texts | RunInference(Lengths().with_preprocess_fn(of_number))
    values = texts | "1" >> RunInference(Lengths().with_postprocess_fn(parsed))
    assert values.element_type is int
    with pytest.raises(TypeCheckError, match="postprocessing function parsed"):
        _ = texts | "2" >> RunInference(Lengths().with_postprocess_fn(to_sentence).with_postprocess_fn(parsed))


def test_nothing_is_refused_without_type_checks(make_run):
    run = make_run(pipeline_type_check=False)
    out = run.create(["a"]) | RunInference(Lengths().with_preprocess_fn(of_number))
    assert run.values(out=out) == [1.0]


def test_dead_letters_have_the_type_of_the_operations_input(pipeline):
    pairs = pipeline | beam.Create([("k", "a"), ("l", "bb")])
    handler = KeyedModelHandler(Lengths()).with_preprocess_fn(lambda pair: (pair[0], "x")).with_postprocess_fn(str)
    _, dead = pairs | RunInference(handler).with_exception_handling()
    before, after = typehints.Tuple[str, str], typehints.Tuple[str, float]
    records = [*dead.failed_preprocessing, dead.failed_inferences, *dead.failed_postprocessing]
    elements = [record.element_type.tuple_types[0] for record in records]
    assert elements == [AnyEncoding(before), AnyEncoding(typehints.List[before]), AnyEncoding(after)]
    assert all(record.element_type.tuple_types[1] == ERROR for record in records)


def test_functions_for_beams_dead_letters_take_ours(texts):
    def take(record: tuple[list[str], tuple[type, str, list[str]]]) -> str:
        return record[1][1]

    def take_ours(record: tuple[list[str], headrace.ErrorRecord]) -> int:
        return record[1].attempts

    def take_other(record: tuple[list[int], Any]) -> None: ...

    _, dead = texts | RunInference(Lengths()).with_exception_handling()
    assert (dead.failed_inferences | beam.Map(take)).element_type is str
    assert (dead.failed_inferences | beam.Map(take_ours)).element_type is int
    assert (dead.failed_inferences | "Infer" >> beam.Map(lambda record: record[1][1])).element_type is str
    with pytest.raises(TypeCheckError):
        _ = dead.failed_inferences | beam.Map(take_other)


def test_dead_letters_that_are_not_what_their_type_says_are_encoded(run):
    def mistyped(_: str) -> int:
        return None

    def bad(batch):
        raise ValueError("no")

    _, dead = run.create(["a"]) | RunInference(Acting(bad).with_preprocess_fn(mistyped)).with_exception_handling()
    ((element, error),) = run.values(out=dead.failed_inferences | beam.Reshuffle())
    assert (element, type(error), error.attempts) == ([None], headrace.ErrorRecord, 1)


def test_frame_of_rows_has_their_columns(texts):
    """What Beam's ``to_dataframe``, and ``WriteToJson`` with it, ask of a PCollection's type."""
    handler = results(headrace.beam).with_postprocess_fn(lambda result: beam.Row(text=str(result.example), length=2))
    rows = texts | RunInference(handler)
    assert dict(generate_proxy(rows.element_type).dtypes) == {"text": "string", "length": "int64"}


def test_values_are_grouped_by_a_deterministic_key(run):
    sums = run.create([("k", "a"), ("k", "bb")]) | RunInference(KeyedModelHandler(Lengths())) | beam.CombinePerKey(sum)
    assert run.values(out=sums) == [("k", 3.0)]


def test_values_may_be_those_of_a_fallback(texts):
    both = RunInference(Lengths(), fallback=results(headrace.beam))
    assert (texts | "Both" >> both).element_type == typehints.Union[float, EitherResult]
    same = RunInference(Lengths(), fallback=results(headrace.beam).with_postprocess_fn(lambda result: 1.0))
    assert (texts | "Same" >> same).element_type is float


# ------------------------------------------------------------------------------------ steps that take batches


class Length(NamedTuple):
    length: float


def as_row(length: float) -> Length:
    return Length(length)


class TakesRows(beam.DoFn):
    """Takes batches, as ``to_dataframe`` does."""

    @beam.DoFn.yields_elements
    def process_batch(self, batch: list[Length]) -> Iterable[float]:
        return [row.length for row in batch]


class TakesNumbers(beam.DoFn):
    @beam.DoFn.yields_elements
    def process_batch(self, batch: list[float]) -> Iterable[float]:
        return batch


@pytest.fixture(params=[False, True], ids=["failing", "handling"])
def infer(request, run):
    """Gives the values of a handler for three texts."""
    texts = run.create(["a", "bb", "ccc"])

    def infer(label, handler):
        plain = RunInference(handler)
        return (texts | label >> plain.with_exception_handling())[0] if request.param else texts | label >> plain

    return infer


def test_batches_of_rows_and_those_after_another_step_are_whole(run, infer):
    rows = infer("One", Lengths().with_postprocess_fn(as_row)) | beam.ParDo(TakesRows())
    lengths = infer("Other", Lengths()) | beam.Map(lambda length: length) | beam.ParDo(TakesNumbers())
    assert list(map(sorted, run.values(rows=rows, lengths=lengths))) == [[1.0, 2.0, 3.0]] * 2


def test_batches_that_beam_would_lose_are_refused(run, infer):
    with pytest.raises(RuntimeError) as caught:
        run.values(out=infer("One", Lengths()) | "Next" >> beam.ParDo(TakesNumbers()))
    assert str(caught.value.__cause__).startswith("Next takes batches right after RunInference")


# ---------------------------------------------------------------------------- Beam's own checks, while a pipeline runs

AT_RUN_TIME, OFF = {"runtime_type_check": True}, {"pipeline_type_check": False}
SLOW = pytest.mark.large


class Reciprocal(ModelHandler[float, float, Any]):
    def load_model(self):
        return lambda number: 1 / number

    def run_inference(self, batch, model, inference_args=None):
        return map(model, batch)


def parsed_pair(pair: tuple[str, str]) -> tuple[str, float]:
    key, text = pair
    return headrace.SKIP if text == "skip" else (key, float(text))


def described(pair: tuple[str, float]) -> str:
    key, number = pair
    if number < 0:
        raise ValueError("negative")
    return f"{key} {number}"


def number_of(pair: tuple[str, float]) -> float:
    return pair[1]


def element_of(record: tuple[Any, tuple[type, str, list[str]]]) -> str:
    return repr(record[0])


@pytest.mark.parametrize(
    ("options", "runner", "monitoring"),
    [
        (AT_RUN_TIME, FnApiRunner, None),
        pytest.param(AT_RUN_TIME, DirectRunner, beam.Map(number_of), marks=SLOW),
        pytest.param(OFF, FnApiRunner, None, marks=SLOW),
        pytest.param(OFF, DirectRunner, None, marks=SLOW),
        pytest.param({**OFF, **AT_RUN_TIME}, FnApiRunner, None, marks=SLOW),
    ],
    ids=str,
)
def test_predictions_dead_letters_and_skips_pass(options, runner, monitoring):
    handler = KeyedModelHandler(Reciprocal()).with_preprocess_fn(parsed_pair).with_postprocess_fn(described)
    with beam.Pipeline(runner=runner(), options=PipelineOptions(**options)) as pipeline:
        pairs = pipeline | beam.Create([("a", "2"), ("b", "x"), ("c", "0"), ("d", "-2"), ("e", "skip")])
        infer = RunInference(handler, monitoring_transform=monitoring).with_exception_handling(threshold=0.9)
        values, dead, _ = pairs | infer.with_skipped_elements()
        assert_that(values, equal_to(["a 0.5"]), "values")
        for label, (record,), element in [
            ("before", dead.failed_preprocessing, "('b', 'x')"),
            ("in", [dead.failed_inferences], "[('c', 0.0)]"),
            ("after", dead.failed_postprocessing, "('d', -0.5)"),
        ]:
            elements = record | f"Element {label}" >> beam.Reshuffle() | f"Take {label}" >> beam.Map(element_of)
            assert_that(elements, equal_to([element]), label)
        rows = dead | DeadLetterRows() | beam.Map(lambda row: row.stage)
        assert_that(rows, equal_to(["preprocessing", "inference", "postprocessing"]), "rows")


# ---------------------------------------------------------------------------------------------------- beside Beam's

KEYED = [("k", "a"), ("l", "bb")]
TEXTS = ["a", "bb"]


def keyed(module):
    return module.KeyedModelHandler(results(module))


def mapped(module):
    mappings = [module.KeyModelMapping(["k"], results(module)), module.KeyModelMapping(["l"], results(module))]
    return module.KeyedModelHandler(mappings)


def maybe(module):
    return module.MaybeKeyedModelHandler(results(module))


PAIR = typehints.Tuple[str, EitherResult]
HANDLERS = {
    "mapped": (KEYED, mapped, PAIR),
    "maybe keyed": (KEYED, maybe, typehints.Any),
    "preprocessed pairs": (
        [(1, "a")],
        lambda m: keyed(m).with_preprocess_fn(lambda pair: (str(pair[0]), pair[1])),
        PAIR,
    ),
    "postprocessed twice": (TEXTS, lambda m: results(m).with_postprocess_fn(len).with_postprocess_fn(of_number), str),
    "postprocessed pairs": (
        KEYED,
        lambda m: keyed(m).with_postprocess_fn(lambda pair: (pair[0], str(pair[1]))),
        typehints.Tuple[str, str],
    ),
    "pre- and postprocessed": (
        [1, 2],
        lambda m: results(m).with_preprocess_fn(of_number).with_postprocess_fn(to_sentence),
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


@pytest.mark.parametrize("duration", [{}, {"max_batch_duration_secs": 1}], ids=["direct", "waiting"])
@pytest.mark.parametrize("monitoring", [None, beam.Map(print)], ids=["plain", "monitored"])
def test_types_are_kept_on_a_stream(duration, monitoring):
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(streaming=True))
    handler = results(headrace.beam, **duration).with_postprocess_fn(to_sentence)
    texts = pipeline | test_stream.TestStream().add_elements(TEXTS).with_output_types(str)
    assert (texts | RunInference(handler, monitoring_transform=monitoring)).element_type is Sentence


def test_type_of_predictions_is_ours_alone_while_beams_module_is_not_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, base.__name__)
    texts = beam.Pipeline() | beam.Create(TEXTS)
    assert (texts | headrace.beam.RunInference(results(headrace.beam))).element_type is headrace.PredictionResult
