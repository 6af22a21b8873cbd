"""Bad elements, and no others, become dead letters, in Beam's shape."""

from __future__ import annotations

import apache_beam as beam
import apache_beam.ml.inference.base as incumbent
import numpy
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows, Sessions, SlidingWindows, TimestampedValue, WindowFn

from headrace import SKIP, BatchingConfig, ConfigurationError, PredictionCountError
from headrace.beam import ModelHandler, RunInference
from pipelines import by_second
from toys import Acting, refuse


class Picky(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        if any(example == 7 for example in batch):
            raise ValueError("seven")
        return [example * 10 for example in batch]


class PickyColumns(Picky):
    """Refuses batches with an odd row."""

    def run_columns(self, columns, model, inference_args=None):
        if (columns % 2).any():
            raise ValueError("odd")
        return columns * 10


def same(value):
    return value


def skip_short(result):
    return SKIP if len(result.inference) < 3 else result


def refuse_short(result):
    if len(result.inference) < 40:
        raise ValueError("short")
    return result


@pytest.mark.filterwarnings("ignore:apache_beam's own RunInference")
def test_record_has_beams_shape(make_run):
    records = []
    for transform in (RunInference, incumbent.RunInference):
        run = make_run()
        _, dead = run.create([7]) | transform(Picky()).with_exception_handling()
        records += run.values(dead=dead.failed_inferences)
    for element, (kind, described, lines) in records:
        assert (element, kind, described[:17]) == ([7], ValueError, "ValueError('seven")
        assert (type(lines), lines[-1]) == (list, "ValueError: seven\n")


def test_element_that_is_a_batch_fails_whole(run):
    good, dead = run.caught([[1, 7], [2]], Picky().with_no_batching())
    assert good == [20]
    assert [record[0] for record in dead] == [[1, 7]]


def test_skipped_elements_have_an_output_of_their_own_on_request(run):
    handler = Picky(min_batch_size=9).with_preprocess_fn(lambda n: SKIP if n == 1 else n)
    handler = handler.with_postprocess_fn(lambda n: SKIP if n == 20 else n)
    infer = RunInference(handler).with_exception_handling().with_skipped_elements()
    good, dead, skipped = run.create([1, 2, 3, 7]) | infer
    good, dead_letters, skipped = run.values(good=good, dead=dead.failed_inferences, skipped=skipped)
    assert (good, [dead_letter[0] for dead_letter in dead_letters], sorted(skipped)) == ([30], [[7]], [1, 20])
    assert run.metrics()["RunInference", "skipped_elements_counter"] == 2


def test_wrong_count_fails_the_whole_batch(run):
    good, dead = run.caught(range(20), Acting(lambda batch: {"logits": batch}))
    assert good == []
    assert sorted(record[0] for record in dead) == [[n] for n in range(20)]
    assert {record[1][0] for record in dead} == {PredictionCountError}


def test_exceptions_of_other_classes_fail_the_pipeline(run):
    with pytest.raises(Exception, match="seven"):
        run.caught([7], Picky(), {"exc_class": KeyError})


def test_dead_letters_cross_a_shuffle_if_the_error_cannot_be_imported(run):
    class Local(ValueError):
        pass

    def fail(batch):
        raise Local("here")

    _, dead = run.create([1, 2]) | RunInference(Acting(fail)).with_exception_handling()
    records = run.values(dead=dead.failed_inferences | beam.Reshuffle())
    assert [(record[1][0], "Local" in record[1][1]) for record in records] == [(ValueError, True)] * 2


TWICE = Picky().with_no_batching().with_postprocess_fn(refuse(10)).with_postprocess_fn(refuse(20))


class TestThreshold:
    @pytest.mark.parametrize(
        ("handler", "elements", "threshold", "left"),
        [
            (Picky(), [7, *range(10, 19)], 0.1, 9),
            (Picky(), range(3), 0, 3),
            (Picky().with_no_batching(), [[7, 1], *[[n] * 10 for n in range(8, 12)]], 0.2, 40),
            (TWICE, [[1, 2, *[3] * 8], [4] * 10], 0.1, 18),
        ],
        ids=["its share", "of nothing", "of batches", "of predictions"],
    )
    def test_threshold_admits_its_share_of_failures(self, run, handler, elements, threshold, left):
        assert len(run.caught(elements, handler, {"threshold": threshold})[0]) == left

    @pytest.mark.parametrize(
        ("handler", "elements", "threshold", "said"),
        [
            (Picky(), [7, 7, *range(10, 18)], 0.1, "2 / 10 = 0.2 > 0.1"),
            (Picky().with_no_batching(), [[7, 1], [1] * 10], 0.4, "1 / 2 = 0.5 > 0.4"),
            (TWICE, [[1, 2, 2, *[3] * 7]], 0.2, "2 / 9 = 0.2"),
            (Picky().with_preprocess_fn(lambda n: SKIP if n < 5 else n), [*range(5), 7, 8], 0.2, "1 / 2 = 0.5 > 0.2"),
            (Picky().with_preprocess_fn(refuse(1)), [1, 7, 8], 0.4, "1 / 2 = 0.5 > 0.4"),
        ],
        ids=["elements", "batches", "predictions", "skipped earlier", "failed earlier"],
    )
    def test_threshold_exceeded_fails_the_pipeline(self, run, handler, elements, threshold, said):
        with pytest.raises(Exception, match=f"exceeded threshold: {said}"):
            run.caught(elements, handler, {"threshold": threshold})

    def test_threshold_must_be_between_0_and_1(self):
        with pytest.raises(ConfigurationError, match="from 0 to 1, not 5"):
            RunInference(Picky()).with_exception_handling(threshold=5)

    def infer_late(self, on_time, late, windows, threshold):
        """Runs a stream in which the late elements arrive one by one, after the window of the others has fired."""
        stream = test_stream.TestStream().add_elements([TimestampedValue(n, 5) for n in on_time])
        stream = stream.advance_watermark_to(100)
        for n in late:
            stream = stream.add_elements([TimestampedValue(n, 5)])
        pipeline = beam.Pipeline("BundleBasedDirectRunner", options=PipelineOptions(["--streaming"]))
        infer = RunInference(Picky()).with_exception_handling(threshold=threshold)
        good, failed = pipeline | stream.advance_watermark_to_infinity() | windows | infer
        overlaps = len(windows.windowing.windowfn.assign(WindowFn.AssignContext(5)))
        expected = [n * 10 for n in (*on_time, *late) if n != 7] * overlaps
        assert_that(good, equal_to(expected), "good")
        sevens = [[7] for n in (*on_time, *late) if n == 7] * overlaps
        assert_that(failed.failed_inferences | beam.Map(lambda letter: letter[0]), equal_to(sevens), "failed")
        pipeline.run().wait_until_finish()

    @pytest.mark.parametrize(
        ("windowfn", "mode"),
        [
            (FixedWindows(10), AccumulationMode.DISCARDING),
            pytest.param(SlidingWindows(10, 5), AccumulationMode.ACCUMULATING, marks=pytest.mark.large),
            pytest.param(Sessions(10), AccumulationMode.ACCUMULATING, marks=pytest.mark.large),
        ],
    )
    def test_threshold_compares_late_failures_with_all_of_their_window(self, windowfn, mode):
        trigger = AfterWatermark(late=AfterCount(1))
        windows = beam.WindowInto(windowfn, trigger=trigger, accumulation_mode=mode, allowed_lateness=1000)
        self.infer_late([7, 8, 9], [7, 10, 7], windows, 0.5)
        self.infer_late([], [8, 7, 9], windows, 0.5)
        with pytest.raises(Exception, match=r"exceeded threshold: 3 / 5 = 0.6 > 0.5"):
            self.infer_late([7, 8, 9], [7, 7], windows, 0.5)

    @pytest.mark.parametrize("functions", [0, 2])
    def test_threshold_with_columnar_elements_counts_rows(self, run, functions):
        """The search cuts an element of 1000 rows into many dead letters."""
        handler, elements = PickyColumns(), [numpy.arange(1000), numpy.arange(0, 20_000, 2)]
        for _ in range(functions):
            handler = handler.with_postprocess_fn(same)
        batching = BatchingConfig(100, 4000, columnar=True)
        values, dead_letters = run.caught(elements, handler, {"threshold": 0.05}, batching=batching)
        assert len(dead_letters) > 100
        assert sum(len(element) for element, _ in dead_letters) == 500
        assert sum(len(value.inference) for value in values) == 10_500

    def test_threshold_in_postprocessing_counts_rows_of_columnar_elements(self, run):
        handler = PickyColumns().with_postprocess_fn(skip_short).with_postprocess_fn(refuse_short)
        elements = [numpy.arange(n) * 2 for n in (2, 30, 70)]
        with pytest.raises(Exception, match=r"exceeded threshold: 30 / 100 = 0.3 > 0.2"):
            run.caught(elements, handler, {"threshold": 0.2}, batching=BatchingConfig(200, 200, columnar=True))

    def test_threshold_applies_to_each_window(self, run):
        elements = by_second(run, "Elements", [(n, n) for n in (5, 6, 7, 11, 12)])
        with pytest.raises(Exception, match=r"1 / 3"):
            run.caught(elements, Picky(), {"threshold": 0.3})
