"""Newer models come from a side input or from files; predictions name their model."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref

import apache_beam as beam
import cloudpickle
import pytest
from apache_beam.pvalue import AsIter
from apache_beam.transforms import window
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp

from headrace.beam import (
    KeyedModelHandler,
    KeyModelMapping,
    KeyModelPathMapping,
    ModelHandler,
    ModelMetadata,
    PredictionResult,
    RunInference,
    WatchFilePattern,
)
from headrace.beam.dofn import InferenceDoFn, Switching
from headrace.core.errors import ConfigurationError
from headrace.runtime.prepare import InferenceRequest, prepare
from pipelines import by_second

WAITING = {"min_batch_size": 4, "max_batch_size": 4, "max_batch_duration_secs": 0.2}
ALIVE = weakref.WeakSet()
"""The models in memory; if this module is pickled by value, the copy has its own."""


@pytest.fixture
def _module_travels():
    """Hosts cannot import test modules, so what is defined here is pickled by value: a copy, with its own ``ALIVE``."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Model(list):
    __hash__ = object.__hash__


class Versioned(ModelHandler):
    def __init__(self, path, **options):
        super().__init__(**options)
        self._model_uri = path

    def load_model(self):
        if os.path.basename(self._model_uri).startswith("bad"):
            raise ValueError(self._model_uri)
        return [self._model_uri]

    def update_model_path(self, model_path=None):
        self._model_uri = model_path or self._model_uri

    def run_inference(self, batch, model, inference_args=None):
        assert model == [self._model_uri]
        return [PredictionResult(example, example, self._model_uri) for example in batch]


class NoThrees(Versioned):
    def run_inference(self, batch, model, inference_args=None):
        if 3 in batch:
            raise ValueError("three")
        return super().run_inference(batch, model)


class Counted(Versioned):
    """Predicts the size of the batch; its models in memory are in ``ALIVE``."""

    def load_model(self):
        model = Model(super().load_model())
        ALIVE.add(model)
        return model

    def run_inference(self, batch, model, inference_args=None):
        return [PredictionResult(example, len(batch), model[0]) for example in batch]


def in_memory():
    gc.collect()
    return {path for (path,) in ALIVE}


def numbered(tick, began, timestamp=beam.DoFn.TimestampParam):
    """The tick's number, and the second of its window, both from the beginning."""
    return round(20 * (float(tick) - began)), timestamp.micros // 10**6 - began


def settled(value, wait_until):
    """Waits until the model for the element's second, or a newer one, is in memory; if it predicted, until no other is.

    On a busy machine the next one may have come before it was loaded.
    """
    wanted = f"v{max(0, value.example[1])}"
    if value.model_id == wanted:
        assert wait_until(lambda: in_memory() == {wanted})
    else:
        assert wait_until(lambda: max(in_memory(), default="") >= wanted)
    return value


@pytest.fixture
def touch(tmp_path):
    """Makes files that were modified a number of seconds ahead of now; gives the pattern of all."""

    def touch(**ahead):
        for name, seconds in ahead.items():
            (tmp_path / f"{name}.bin").touch()
            os.utime(tmp_path / f"{name}.bin", (time.time() + seconds,) * 2)
        return str(tmp_path / "*.bin")

    return touch


@pytest.fixture
def asking():
    """A function that runs elements as one bundle, each with its side input of newer models; gives their models."""
    dofn = InferenceDoFn(prepare(Versioned("v0"), InferenceRequest()), switching=Switching())

    def ask(*sides):
        dofn.start_bundle()
        outputs = []
        for side in sides:
            outputs += dofn.process(1, GlobalWindows.windowed_value(1), None, side)
        return [output.value.model_id for output in [*outputs, *dofn.finish_bundle()]]

    dofn.setup()
    yield ask
    dofn.teardown()


def metadata(path):
    return ModelMetadata(path, f"name of {path}")


def predicted(values):
    return sorted((value.example, value.model_id) for value in values)


def test_first_model_is_that_of_the_latest_of_several_updates(run):
    update = [window.TimestampedValue(metadata(f"v{n}"), n) for n in (1, 3, 2)]
    newer = run.pipeline | "Newer" >> beam.Create(update) | "At" >> beam.Map(lambda one: one)
    values = run.infer([1], Versioned("bad"), model_metadata_pcoll=newer)
    assert predicted(values) == [(1, "v3")]
    metrics = run.metrics()
    assert metrics["RunInference", "num_inferences"] == metrics["RunInference", "name of v3_num_inferences"] == 1


def test_fallback_stays_when_the_model_is_refreshed(run):
    newer = run.pipeline | "Newer" >> beam.Create([metadata("v1")])
    values = run.infer([1, 3], NoThrees("v0"), fallback=Versioned("another"), model_metadata_pcoll=newer)
    assert predicted(values) == [(1, "v1"), (3, "another")]


@pytest.mark.large
@pytest.mark.usefixtures("_module_travels")
def test_bounded_elements_wait_for_the_last_good_model_of_their_window(run):
    elements = by_second(run, "Elements", [(n, n) for n in (1, 11, 21, 22, 31)])
    newer = by_second(run, "Newer", [(metadata("v1"), 10), (metadata("bad"), 20), (metadata("v3"), 30)])
    infer = RunInference(Versioned("v0"), model_metadata_pcoll=newer, isolate=True)
    good, dead = elements | infer.with_exception_handling()
    good, failed = run.collect(good=good, failed=dead.failed_inferences)
    assert predicted(value for value, _, _ in good) == [(1, "v0"), (11, "v1"), (21, "v1"), (22, "v1"), (31, "v3")]
    assert sorted((value.example, time, start) for value, time, (start, _) in good)[1] == (11, 11.0, 10.0)
    assert failed == []
    metrics = run.metrics()
    assert metrics["RunInference", "model_refreshes"] == 2
    assert metrics["RunInference", "failed_model_refreshes"] == 1


def test_keys_of_one_model_can_be_given_different_models(run):
    elements = by_second(
        run, "Elements", [(("a", 1), 1), (("b", 2), 1), (("a", 3), 11), (("b", 4), 11), (("c", 5), 11)]
    )
    newer = by_second(run, "Newer", [([KeyModelPathMapping(["b"], "v1", "one")], 11)])
    handler = KeyedModelHandler([KeyModelMapping(["a", "b"], Versioned("ab")), KeyModelMapping(["c"], Versioned("c"))])
    values = run.infer(elements, handler, placement="process", model_metadata_pcoll=newer)
    expected = [(1, "ab"), (2, "ab"), (3, "ab"), (4, "v1"), (5, "c")]
    assert predicted(value for _, value in values) == expected
    assert run.metrics()["BeamML_KeyedModels", "b-one-_num_inferences"] == 1


@pytest.mark.large
def test_stream_frees_older_models_and_loses_no_element(run, wait_until):
    began = int(time.time()) + 1
    ticks = run.pipeline | PeriodicImpulse(Timestamp(began), Timestamp(began + 2.9), 0.05)
    elements = ticks | beam.Map(numbered, began) | beam.WindowInto(window.FixedWindows(1))
    newer = run.pipeline | "Newer" >> beam.Create([1, 2], reshuffle=False)
    newer = newer | beam.Map(lambda second: window.TimestampedValue(metadata(f"v{second}"), began + second))
    newer = newer | "Seconds" >> beam.WindowInto(window.FixedWindows(1))
    predictions = elements | RunInference(Counted("v0", **WAITING), model_metadata_pcoll=newer)
    values = run.values(out=predictions | beam.Map(settled, wait_until))
    assert sorted(value.example[0] for value in values) == list(range(len(values)))
    versions = [value.model_id for value in values]
    assert versions == sorted(versions)
    assert set(versions) == {"v0", "v1", "v2"}


def test_beams_watch_gives_models(run, tmp_path, touch):
    watched = WatchFilePattern(touch(new=10), interval=10, stop_timestamp=Timestamp.now() + 0.5)
    values = run.infer([1], Versioned("v0"), model_metadata_pcoll=run.pipeline | watched)
    assert predicted(values) == [(1, str(tmp_path / "new.bin"))]


def test_newest_file_before_the_stop_timestamp_serves_unless_it_fails_to_load(run, tmp_path, touch):
    watching = {
        "watch_model_pattern": touch(old=-1e9, good=50, bad=60, beyond=600),
        "stop_timestamp": Timestamp.now() + 300,
    }
    values = run.infer([1, 2], Versioned(str(tmp_path / "old.bin")), **watching)
    assert [value.model_id for value in values] == [str(tmp_path / "good.bin")] * 2
    assert run.metrics()["RunInference", "failed_model_refreshes"] == 1


def test_stream_watches_files_without_a_side_input(run, tmp_path, touch):
    began = Timestamp.now()
    ticks = run.pipeline | PeriodicImpulse(began, began + 0.2, 0.05)
    values = run.infer(ticks, Counted("0.bin", **WAITING), watch_model_pattern=touch(new=60), interval=1)
    assert {value.model_id for value in values} == {str(tmp_path / "new.bin")}


def test_pattern_without_a_match_fails_the_pipeline(run, touch):
    with pytest.raises(Exception, match="no file matches watch_model_pattern"):
        run.infer([1], Versioned("v0"), watch_model_pattern=touch())


def test_side_input_kept_by_a_worker_shows_later_updates(asking, wait_until):
    pairs = []
    updates = AsIter._from_runtime_iterable(pairs, {})  # once, as Beam's workers do for the global window
    assert asking(updates) == ["v0"]
    pairs.append((1, metadata("v1")))
    assert wait_until(lambda: asking(updates) == ["v1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"watch_model_pattern": "*", "interval": 0}, "interval must be a positive number"),
        ({"watch_model_pattern": "*", "stop_timestamp": "soon"}, "stop_timestamp must be a Timestamp"),
        ({"watch_model_pattern": 3}, "watch_model_pattern must be a path"),
        ({"model_metadata_pcoll": "v1"}, "must be a PCollection of ModelMetadata"),
        ({"interval": 3}, "interval go with watch_model_pattern"),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        RunInference(Versioned("v0"), **arguments)


def test_watching_files_is_refused_for_models_by_key_and_beside_a_side_input():
    keyed = KeyedModelHandler([KeyModelMapping(["a"], Versioned("a")), KeyModelMapping(["b"], Versioned("b"))])
    with pytest.raises(ConfigurationError, match="model_metadata_pcoll"):
        RunInference(keyed, watch_model_pattern="*")
    newer = beam.Pipeline() | beam.Create([metadata("v1")])
    with pytest.raises(ConfigurationError, match="not both"):
        RunInference(Versioned("v0"), model_metadata_pcoll=newer, watch_model_pattern="*")


def test_side_input_is_read_once_per_window_and_bundle(asking):
    reads = []

    class Pairs:
        def __iter__(self):
            reads.append(self)
            return iter([(1, metadata("v1"))])

    one, other = (AsIter._from_runtime_iterable(Pairs(), {}) for _ in range(2))
    for _ in range(2):
        asking(one, other, one, other)
    assert len(reads) == 4
