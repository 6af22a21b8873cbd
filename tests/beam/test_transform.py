"""The transform: Beam's arguments with Beam's meanings, clear errors for wrong ones, and what it returns."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import apache_beam as beam
import apache_beam.ml.inference.base as incumbent
import numpy
import pytest
from apache_beam.ml.inference import base
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import headrace.beam
from headrace import BatchingConfig, ConfigurationError, NotYetHonouredWarning, PredictionCountError
from headrace.beam import ModelHandler, PredictionResult, RunInference
from headrace.testing import DoublingHandler
from toys import Acting


class Adder(ModelHandler):
    """Adds the model's numbers; its model is a tuple."""

    def __init__(self, amount=1, **options):
        super().__init__(**options)
        self.amount = amount

    def load_model(self):
        return (self.amount, int(os.environ.get("HEADRACE_TEST_EXTRA", "0")))

    def run_inference(self, batch, model, inference_args=None):
        extra = (inference_args or {}).get("plus", 0)
        return [PredictionResult(example, example + sum(model) + extra) for example in batch]


class Theirs(incumbent.ModelHandler):
    """Written for Beam: derived from Beam's own class, with metrics of its own."""

    def load_model(self):
        return [10]

    def run_inference(self, batch, model, inference_args=None):
        beam.metrics.Metrics.counter("theirs", "calls").inc()
        return [incumbent.PredictionResult(example, example + model[0]) for example in batch]


class Client:
    calls = 0


def inferences(results):
    return sorted(result.inference for result in results)


class Labels(PipelineVisitor):
    def __init__(self):
        self.labels = []

    def visit_transform(self, transform_node):
        self.labels.append(transform_node.full_label)


def test_functions_and_batching_are_no_steps_of_their_own():
    """A streaming job that is updated in place maps the steps of Beam's transform by these names."""
    pipeline, visitor = beam.Pipeline(), Labels()
    handler = Adder().with_preprocess_fn(float).with_postprocess_fn(str)
    _ = pipeline | beam.Create([1], reshuffle=False) | RunInference(handler)
    pipeline.visit(visitor)
    assert [one for one in visitor.labels if one.startswith("RunInference/")] == ["RunInference/BeamML_RunInference"]


def test_beams_name_of_the_handler_is_read_and_set(run):
    transform = RunInference(Adder(), inference_args={"plus": 5}).with_exception_handling()
    assert transform._model_handler.amount == 1
    transform._model_handler = Adder(10)
    good, _ = run.create([1, "none"]) | transform
    assert inferences(run.values(out=good)) == [16]


def test_positional_arguments_are_beams(run):
    out = run.create([1]) | RunInference(Adder(), time, {"plus": 5}, "my_namespace")
    assert inferences(run.values(out=out)) == [7]
    assert ("my_namespace", "num_inferences") in run.metrics()


def test_batching_replaces_the_handlers_options(run):
    handler = Adder(max_batch_size=1)
    out = run.create(range(8)) | RunInference(handler, batching=BatchingConfig(min_batch_size=4, max_batch_size=4))
    run.values(out=out)
    assert run.metrics()["RunInference", "inference_request_batch_size"].max == 4


def test_handler_written_for_beam_runs_unchanged_with_its_wrappers(run):
    handler = Theirs().with_preprocess_fn(int).with_postprocess_fn(lambda result: result.inference)
    out = run.create(["1", "2"]) | RunInference(handler)
    assert sorted(run.values(out=out)) == [11, 12]
    assert run.metrics()["theirs", "calls"] >= 1


REMOTE = pytest.mark.since_beam("2.65", reason="Beam has no RemoteModelHandler before")


@pytest.mark.large
@REMOTE
def test_remote_handler_written_for_beam_runs_with_beams_retries(run):
    class Remote(incumbent.RemoteModelHandler):
        def create_client(self):
            return Client()

        def request(self, batch, model, inference_args=None):
            model.calls += 1
            if model.calls == 1:
                raise ConnectionError("try again")
            return [example + 1 for example in batch]

    remote = Remote(namespace="remote", num_retries=1, throttle_delay_secs=0)
    assert sorted(run.values(out=run.create([1, 2]) | RunInference(remote))) == [2, 3]


@REMOTE
def test_billed_requests_are_not_retried_in_parts(run):
    class Remote(incumbent.RemoteModelHandler):
        def create_client(self):
            return {}

        def request(self, batch, model, inference_args=None):
            beam.metrics.Metrics.counter("remote", "calls").inc()
            raise ConnectionError("refused")

        def batch_elements_kwargs(self):
            return {"min_batch_size": 4, "max_batch_size": 4}

    transform = RunInference(Remote(namespace="remote", num_retries=0)).with_exception_handling()
    _, dead = run.create(range(4)) | transform
    assert sorted(element for [element], _ in run.values(dead=dead.failed_inferences)) == [0, 1, 2, 3]
    assert run.metrics()["remote", "calls"] == 1


def test_from_callable_makes_a_transform(run):
    out = run.create([1]) | RunInference.from_callable(Adder, amount=5)
    assert inferences(run.values(out=out)) == [6]


def test_identifier_shares_one_model(run):
    pcoll = run.create([1])
    one, two = (
        pcoll | label >> RunInference(Adder(), model_identifier="adder", metrics_namespace=label)
        for label in ("one", "two")
    )
    run.values(one=one, two=two)
    assert sum(("load_model_latency_milli_secs" in key) for key in run.metrics()) == 1


def test_annotations_describe_the_handler():
    annotations = RunInference(Adder(), model_identifier="me").annotations()
    assert annotations["model_identifier"] == "me"
    assert annotations["model_handler_type"] == f"{__name__}.Adder"
    assert "Adder" in annotations["model_handler"]


def test_resource_hints_reach_the_runner():
    class Hungry(Adder):
        def get_resource_hints(self):
            return {"min_ram": "2KB"}

    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create([1]) | RunInference(Hungry())
    proto = pipeline.to_runner_api()
    hints = [env.resource_hints for env in proto.components.environments.values() if env.resource_hints]
    assert any(b"2000" in dict(hint).values() for hint in hints)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("inference_arg", "; did you mean 'inference_args'?"),
        ("timeout", ": it belongs to RunInference(...).with_exception_handling(timeout=...) or headrace.predict("),
        ("batch_size", ": use max_batch_size=... of the model handler"),
        ("min_batch_size", ": it belongs to the model handler: SomeModelHandler(..., min_batch_size=...)."),
    ],
)
def test_unknown_arguments_are_errors_that_say_where_they_belong(name, advice):
    with pytest.raises(ConfigurationError) as caught:
        RunInference(Adder(), **{name: 1})
    assert str(caught.value).startswith(f"RunInference has no argument {name!r}{advice}")


def test_batch_size_that_beam_ignores_is_a_warning():
    with pytest.warns(
        NotYetHonouredWarning, match="no effect, here or with Beam; give the model handler max_batch_"
    ) as w:
        RunInference(Adder(), inference_batch_size=32)
    assert [one.filename for one in w] == [__file__]


def test_threads_of_a_process_share_one_load(make_run):
    run = make_run(direct_num_workers=4, direct_running_mode="multi_threading")
    out = run.create(range(100)) | beam.Reshuffle() | RunInference(Adder(max_batch_size=5))
    assert inferences(run.values(out=out)) == [n + 1 for n in range(100)]
    assert run.metrics()["RunInference", "load_model_latency_milli_secs"].count == 1


def test_transform_applied_again_loads_its_model_again(make_run, tmp_path):
    class FromFile(Adder):
        def load_model(self):
            return (int((tmp_path / "amount").read_text()),)

    (tmp_path / "amount").write_text("1")
    transform, first = RunInference(FromFile()), make_run()
    assert inferences(first.values(out=first.create([0]) | transform)) == [1]
    (tmp_path / "amount").write_text("2")
    second = make_run()
    assert inferences(second.values(out=second.create([0]) | transform)) == [2]


@pytest.mark.parametrize("timeout", [0, -1, "5", float("inf"), float("nan")])
def test_timeout_must_be_a_positive_number(timeout):
    with pytest.raises(ConfigurationError, match="timeout must be a positive number of seconds, not "):
        RunInference(Adder()).with_exception_handling(timeout=timeout)


def results_of(transform):
    return beam.Pipeline() | beam.Create([1]) | transform


def test_dead_letters_are_of_headraces_class_and_of_beams():
    _, dead = results_of(RunInference(DoublingHandler().with_preprocess_fn(int)).with_exception_handling())
    assert isinstance(dead, headrace.beam.RunInferenceDLQ)
    assert isinstance(dead, base.RunInferenceDLQ)
    assert len(dead.failed_preprocessing) == 1
    inference, before, after = dead
    assert (inference, list(before), list(after)) == (dead.failed_inferences, list(dead.failed_preprocessing), [])


@pytest.mark.large
def test_dead_letters_do_not_load_beams_module():
    code = """
import sys
import apache_beam as beam
from headrace.beam import RunInference, RunInferenceDLQ
from headrace.testing import DoublingHandler

_, dead = beam.Pipeline() | beam.Create([1]) | RunInference(DoublingHandler()).with_exception_handling()
assert type(dead) is RunInferenceDLQ
assert "apache_beam.ml.inference.base" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_error_of_a_pipeline_has_the_type_of_the_error():
    def too_few(batch):
        return []

    with pytest.raises(
        PredictionCountError, match=r"given 2 examples and returned 0 .*\[while running '.*RunInference"
    ):
        results_of_running(Acting(too_few, min_batch_size=2, max_batch_size=2))


def results_of_running(handler):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([1, 2]) | RunInference(handler)


class Bits(ModelHandler):
    """Predicts sums whose last bits depend on the size of the batch."""

    def load_model(self):
        return numpy.random.default_rng(1).normal(size=(37, 5)).astype("f4")

    def run_inference(self, batch, model, inference_args=None):
        logits = numpy.stack(batch) @ model
        return list(logits + numpy.float32(1e-7) * len(batch))


@pytest.mark.large
@pytest.mark.parametrize("options", [{}, {"batch_length_fn": numpy.count_nonzero}], ids=["as-they-come", "sorted"])
def test_predictions_of_two_runs_are_byte_equal(make_run, options):
    rows = numpy.random.default_rng(0).normal(size=(1000, 37)).astype("f4")
    rows[numpy.random.default_rng(2).random(rows.shape) < 0.3] = 0

    def answers(size):
        run = make_run()
        handler = Bits(min_batch_size=size, max_batch_size=size, **options)
        return [answer.tobytes() for answer in run.values(answers=run.create(rows) | RunInference(handler))]

    first = answers(48)
    assert len(first) == 1000
    assert answers(48) == first
    assert answers(47) != first
