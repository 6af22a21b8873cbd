"""Bad elements, and no others, become dead letters, in Beam's shape or as rows."""

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
from apache_beam.utils.timestamp import Timestamp

from headrace import SKIP, BatchingConfig, ConfigurationError
from headrace.beam import DeadLetterRows, RunInference
from pipelines import by_second
from toys import Acting, refuse, with_attributes


def picky(batch):
    if 7 in batch:
        raise ValueError("seven\nof them")
    return [example * 10 for example in batch]


PICKY, PAIRS = Acting(picky), Acting(picky, min_batch_size=2, max_batch_size=2)


class PickyColumns(Acting):
    """Refuses batches with an odd row."""

    def run_columns(self, columns, model, inference_args=None):
        if (columns % 2).any():
            raise ValueError("odd")
        return columns * 10


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
        _, dead = run.create([7]) | transform(PICKY).with_exception_handling()
        records += run.values(dead=dead.failed_inferences)
    for element, (kind, described, lines) in records:
        assert (element, kind, described[:17]) == ([7], ValueError, "ValueError('seven")
        assert (type(lines), lines[-1]) == (list, "ValueError: seven\nof them\n")


def test_exceptions_of_other_classes_fail_the_pipeline(run):
    with pytest.raises(Exception, match="seven"):
        run.caught([7], PICKY, {"exc_class": KeyError})


def test_dead_letters_cross_a_shuffle_if_the_error_cannot_be_imported(run):
    class Local(ValueError):
        pass

    def fail(batch):
        raise Local("here")

    _, dead = run.create([1, 2]) | RunInference(Acting(fail)).with_exception_handling()
    records = run.values(dead=dead.failed_inferences | beam.Reshuffle())
    assert [(record[1][0], "Local" in record[1][1]) for record in records] == [(ValueError, True)] * 2


def test_rows_of_every_stage_are_in_one_pcollection(run):
    handler = with_attributes(Acting(picky, min_batch_size=32), _model_uri="seven.bin")
    handler = handler.with_preprocess_fn(refuse(1)).with_preprocess_fn(int)
    handler = handler.with_postprocess_fn(refuse(20)).with_postprocess_fn(refuse(30))
    good, dead = run.create([*"0123456789", "x"]) | RunInference(handler).with_exception_handling()
    assert (len(dead.failed_preprocessing), len(dead.failed_postprocessing)) == (2, 2)
    good, rows = run.values(good=good, rows=dead | DeadLetterRows())
    assert sorted(good) == [0, 40, 50, 60, 80, 90]
    found = sorted((row.stage, row.index, row.element, row.error_type, row.message) for row in rows)
    assert found == [
        ("inference", 0, 7, "ValueError", "seven\nof them"),
        ("postprocessing", 0, 20, "KeyError", "20"),
        ("postprocessing", 1, 30, "KeyError", "30"),
        ("preprocessing", 0, "x", "ValueError", "invalid literal for int() with base 10: 'x'"),
        ("preprocessing", 1, 1, "KeyError", "1"),
    ]
    assert {row.model_id for row in rows} == {"seven.bin"}
    assert {row.stage: row.attempts for row in rows} == {"inference": 2, "postprocessing": 1, "preprocessing": 1}
    assert all(row.traceback.startswith("Traceback") and row.key is None for row in rows)


def test_rows_cross_a_shuffle_with_schema_timestamp_and_window(run):
    _, dead = by_second(run, "Elements", [(7, 7.5), (8, 8.5)]) | RunInference(PAIRS).with_exception_handling()
    rows = dead | DeadLetterRows()
    assert [name for name, _ in rows.element_type._fields][:3] == ["stage", "index", "key"]
    ((row, time, span),) = run.collect(rows=rows | beam.Reshuffle())
    assert (row.element, row.attempts, row.model_id) == (7, 2, None)
    assert (row.event_time, time, span) == (Timestamp(7.5), 7.5, (0.0, 10.0))


@pytest.mark.filterwarnings("ignore:apache_beam's own RunInference")
def test_rows_from_beams_dead_letters(run):
    _, dead = run.create([7, 8]) | incumbent.RunInference(PAIRS).with_exception_handling()
    (row,) = run.values(rows=dead | DeadLetterRows())
    assert (row.stage, row.index, row.element, row.message) == ("inference", 0, [7, 8], "seven\nof them")
    assert (row.attempts, row.model_id, row.key) == (1, None, None)


TWICE = PICKY.with_no_batching().with_postprocess_fn(refuse(10)).with_postprocess_fn(refuse(20))


class TestThreshold:
    @pytest.mark.parametrize(("elements", "threshold", "left"), [([7, *range(10, 19)], 0.1, 9), (range(3), 0, 3)])
    def test_threshold_admits_its_share_of_failures(self, run, elements, threshold, left):
        assert len(run.caught(elements, PICKY, {"threshold": threshold})[0]) == left

    @pytest.mark.parametrize(
        ("handler", "elements", "threshold", "said"),
        [
            (PICKY, [7, 7, *range(10, 18)], 0.1, "2 / 10 = 0.2 > 0.1"),
            (PICKY.with_no_batching(), [[7, 1], [1] * 10], 0.4, "1 / 2 = 0.5 > 0.4"),
            (TWICE, [[1, 2, 2, *[3] * 7]], 0.2, "2 / 9 = 0.2"),
            (PICKY.with_preprocess_fn(lambda n: SKIP if n < 5 else n), [*range(5), 7, 8], 0.2, "1 / 2 = 0.5 > 0.2"),
        ],
        ids=["elements", "batches", "predictions", "skipped earlier"],
    )
    def test_threshold_exceeded_fails_the_pipeline(self, run, handler, elements, threshold, said):
        with pytest.raises(Exception, match=f"exceeded threshold: {said}"):
            run.caught(elements, handler, {"threshold": threshold})

    def test_threshold_must_be_between_0_and_1(self):
        with pytest.raises(ConfigurationError, match="from 0 to 1, not 5"):
            RunInference(PICKY).with_exception_handling(threshold=5)

    def infer_late(self, on_time, late, windows, threshold):
        """Runs a stream in which the late elements arrive one by one, after the window of the others has fired."""
        stream = test_stream.TestStream().add_elements([TimestampedValue(n, 5) for n in on_time])
        stream = stream.advance_watermark_to(100)
        for n in late:
            stream = stream.add_elements([TimestampedValue(n, 5)])
        pipeline = beam.Pipeline("BundleBasedDirectRunner", options=PipelineOptions(["--streaming"]))
        infer = RunInference(PICKY).with_exception_handling(threshold=threshold)
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

    def test_threshold_with_columnar_elements_counts_rows(self, run):
        """The search cuts an element of 1000 rows into many dead letters."""
        elements, batching = [numpy.arange(1000), numpy.arange(0, 20_000, 2)], BatchingConfig(100, 4000, columnar=True)
        handler = PickyColumns().with_postprocess_fn(lambda value: value.inference)
        values, dead_letters = run.caught(elements, handler, {"threshold": 0.05}, batching=batching)
        assert len(dead_letters) > 100
        assert sum(len(element) for element, _ in dead_letters) == 500
        assert sum(map(len, values)) == 10_500

    def test_threshold_in_postprocessing_counts_rows_of_columnar_elements(self, run):
        handler = PickyColumns().with_postprocess_fn(skip_short).with_postprocess_fn(refuse_short)
        elements = [numpy.arange(n) * 2 for n in (2, 30, 70)]
        with pytest.raises(Exception, match=r"exceeded threshold: 30 / 100 = 0.3 > 0.2"):
            run.caught(elements, handler, {"threshold": 0.2}, batching=BatchingConfig(200, 200, columnar=True))

    def test_threshold_applies_to_each_window(self, run):
        elements = by_second(run, "Elements", [(n, n) for n in (5, 6, 7, 11, 12)])
        with pytest.raises(Exception, match=r"1 / 3"):
            run.caught(elements, PICKY, {"threshold": 0.3})
