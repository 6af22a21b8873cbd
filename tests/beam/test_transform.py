"""The transform: Beam's arguments with Beam's meanings, clear errors for wrong ones, and what it returns."""

from __future__ import annotations

import sys
import time

import apache_beam as beam
import apache_beam.ml.inference.base as incumbent
import pytest

import headrace.beam
from headrace import ConfigurationError, NotYetHonouredWarning, PredictionCountError, UnsupportedError
from headrace.beam import (
    KeyedModelHandler,
    KeyModelMapping,
    KeyModelPathMapping,
    ModelHandler,
    PredictionResult,
    RunInference,
)
from headrace.testing import DoublingHandler
from toys import Acting, Poisoned, fixed


class Adder(ModelHandler):
    """Adds the model's numbers; its model is a tuple."""

    def __init__(self, amount=1, **options):
        super().__init__(**options)
        self.amount = amount

    def load_model(self):
        return (self.amount, 0)

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


def inferences(results):
    return sorted(result.inference for result in results)


def test_functions_and_batching_are_no_steps_of_their_own():
    """A streaming job that is updated in place maps the steps of Beam's transform by these names."""
    pipeline, handler = beam.Pipeline(), Adder().with_preprocess_fn(float).with_postprocess_fn(str)
    _ = pipeline | beam.Create([1], reshuffle=False) | RunInference(handler)
    labels = [step.unique_name for step in pipeline.to_runner_api().components.transforms.values()]
    assert [one for one in labels if one.startswith("RunInference/")] == ["RunInference/BeamML_RunInference"]


def test_beams_name_of_the_handler_is_read_and_set(run):
    transform = RunInference(Adder(), inference_args={"plus": 5}).with_exception_handling()
    assert transform._model_handler.amount == 1
    transform._model_handler = Adder(10)
    good, _ = run.create([1, "none"]) | transform
    assert inferences(run.values(out=good)) == [16]


def test_positional_arguments_are_beams(run):
    out = run.create(range(8)) | RunInference(Adder(max_batch_size=1), time, {"plus": 5}, "mine", batching=fixed(4))
    assert inferences(run.values(out=out)) == [n + 6 for n in range(8)]
    assert run.metrics()["mine", "inference_request_batch_size"].max == 4  # not the handler's own option


def test_handler_written_for_beam_runs_unchanged_with_its_wrappers(run):
    handler = Theirs().with_preprocess_fn(int).with_postprocess_fn(lambda result: result.inference)
    assert sorted(run.infer(["1", "2"], handler)) == [11, 12]
    assert run.metrics()["theirs", "calls"] >= 1


@pytest.mark.since_beam("2.65", reason="Beam has no RemoteModelHandler before")
@pytest.mark.parametrize("retries", [0, pytest.param(1, marks=pytest.mark.large)])
def test_remote_handler_written_for_beam_has_beams_retries_and_none_in_parts(run, retries):
    class Remote(incumbent.RemoteModelHandler):
        def create_client(self):
            return []

        def request(self, batch, model, inference_args=None):
            beam.metrics.Metrics.counter("remote", "calls").inc()
            model.append(batch)
            if len(model) == 1:
                raise ConnectionError("refused")
            return batch

        def batch_elements_kwargs(self):
            return {"min_batch_size": 4, "max_batch_size": 4}

    remote = Remote(namespace="remote", num_retries=retries, throttle_delay_secs=0)
    good, dead = run.caught(range(4), remote)
    assert sorted(good if retries else (element for [element], _ in dead)) == [0, 1, 2, 3]
    assert run.metrics()["remote", "calls"] == 1 + retries


def test_from_callable_makes_a_transform():
    assert RunInference.from_callable(Adder, amount=5)._model_handler.amount == 5


def test_annotations_describe_the_handler_and_what_monitors_it():
    monitoring = beam.Map(print)
    annotations = RunInference(Adder(), model_identifier="me", monitoring_transform=monitoring).annotations()
    assert annotations["model_identifier"] == "me"
    assert annotations["model_handler_type"] == f"{__name__}.Adder"
    assert "Adder" in annotations["model_handler"]
    assert annotations["monitoring_transform"] == str(monitoring)
    assert "monitoring_transform" not in RunInference(Adder()).annotations()


def test_resource_hints_reach_the_runner():
    class Hungry(Adder):
        def get_resource_hints(self):
            return {"min_ram": "2KB"}

    pipeline = beam.Pipeline()
    _ = pipeline | beam.Create([1]) | RunInference(Hungry())
    environments = pipeline.to_runner_api().components.environments.values()
    hints = [env.resource_hints for env in environments if env.resource_hints]
    assert any(b"2000" in dict(hint).values() for hint in hints)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("inference_arg", "; did you mean 'inference_args'?"),
        ("timeout", ": it belongs to RunInference(...).with_exception_handling(timeout=...) or headrace.predict("),
    ],
)
def test_unknown_arguments_are_errors_that_say_where_they_belong(name, advice):
    with pytest.raises(ConfigurationError) as caught:
        RunInference(Adder(), **{name: 1})
    assert str(caught.value).startswith(f"RunInference has no argument {name!r}{advice}")


def test_batch_size_that_beam_ignores_is_a_warning():
    said = "no effect, here or with Beam; give the model handler max_batch_"
    with pytest.warns(NotYetHonouredWarning, match=said) as w:
        RunInference(Adder(), inference_batch_size=32)
    assert [one.filename for one in w] == [__file__]


def test_transform_applied_again_loads_its_model_again(make_run, tmp_path):
    class FromFile(Adder):
        def load_model(self):
            return (int((tmp_path / "amount").read_text()),)

    transform = RunInference(FromFile())
    for amount in (1, 2):
        (tmp_path / "amount").write_text(str(amount))
        run = make_run()
        assert inferences(run.values(out=run.create([0]) | transform)) == [amount]


def test_dead_letters_are_of_headraces_class_and_of_beams():
    infer = RunInference(DoublingHandler().with_preprocess_fn(int)).with_exception_handling()
    _, dead = beam.Pipeline() | beam.Create([1]) | infer
    assert isinstance(dead, headrace.beam.RunInferenceDLQ)
    assert isinstance(dead, incumbent.RunInferenceDLQ)
    assert len(dead.failed_preprocessing) == 1
    inference, before, after = dead
    assert (inference, list(before), list(after)) == (dead.failed_inferences, list(dead.failed_preprocessing), [])


def test_dead_letters_do_not_load_beams_module(monkeypatch):
    monkeypatch.delitem(sys.modules, incumbent.__name__)
    monkeypatch.delattr(incumbent.__name__)  # of its package
    _, dead = beam.Pipeline() | beam.Create([1]) | RunInference(DoublingHandler()).with_exception_handling()
    assert type(dead) is headrace.beam.RunInferenceDLQ
    assert incumbent.__name__ not in sys.modules


MAPPINGS = [KeyModelMapping(["a", "b"], DoublingHandler()), KeyModelMapping(["c"], Poisoned())]


@pytest.mark.filterwarnings("ignore:apache_beam's own RunInference")
def test_keyed_handler_of_several_models_runs_in_beams_transform(make_run):
    def predicted(pairs, **options):
        run = make_run()
        return sorted(
            run.values(out=run.create(pairs) | incumbent.RunInference(KeyedModelHandler(MAPPINGS, **options)))
        )

    found = predicted([("a", 1), ("c", 2), ("b", 3)], max_models_per_worker_hint=1)
    assert found == [("a", PredictionResult(1, 2)), ("b", PredictionResult(3, 6)), ("c", 102)]
    with pytest.raises(Exception, match="poison"):
        predicted([("c", -1)])


def test_keyed_handler_refuses_newer_models_from_beams_transform():
    handler = KeyedModelHandler(MAPPINGS)
    assert handler.update_model_paths(handler.load_model(), None) is None
    with pytest.raises(UnsupportedError, match=r"run it with headrace\.beam\.RunInference"):
        handler.update_model_paths(handler.load_model(), [KeyModelPathMapping(["a"], "path")])


def test_error_of_a_pipeline_has_the_type_of_the_error(run):
    said = r"given 2 examples and returned 0 .*\[while running '.*RunInference"
    with pytest.raises(PredictionCountError, match=said):
        run.infer([1, 2], Acting(lambda batch: [], min_batch_size=2, max_batch_size=2))


@pytest.mark.large
def test_two_runs_have_the_same_batches(make_run):
    """So that predictions, whose last bits may depend on their batch, are the same bytes."""
    rows = [(n * 7919) % 1000 for n in range(1000)]

    def answers(size):
        handler = Acting(lambda batch: [list(batch)] * len(batch))
        return make_run().infer(rows, handler, batching=fixed(size, length_fn=abs))

    assert answers(48) == answers(48) != answers(47)
