"""Dead letters as rows: everything known about each failure in every stage."""

from __future__ import annotations

import apache_beam as beam
import apache_beam.ml.inference.base as incumbent
import pytest
from apache_beam.utils.timestamp import Timestamp

from headrace import ErrorRecord
from headrace.beam import DeadLetterRows, KeyedModelHandler, KeyModelMapping, ModelHandler, RunInference
from pipelines import by_second
from toys import refuse

pytestmark = pytest.mark.usefixtures("module_travels")


class Picky(ModelHandler):
    def __init__(self, model_uri=None, **options):
        super().__init__(**options)
        self._model_uri = model_uri

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        if any(example == 7 for example in batch):
            raise ValueError("seven\nof them")
        return [example * 10 for example in batch]


def rows_of(elements, handler, transform=RunInference):
    _, dead = elements | transform(handler).with_exception_handling()
    return dead | DeadLetterRows()


def test_rows_of_every_stage_are_in_one_pcollection(run):
    handler = Picky("seven.bin", min_batch_size=32, max_batch_size=32)
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
    rows = rows_of(by_second(run, "Elements", [(7, 7.5), (8, 8.5)]), Picky(min_batch_size=2, max_batch_size=2))
    assert [name for name, _ in rows.element_type._fields][:3] == ["stage", "index", "key"]
    ((row, time, window),) = run.collect(rows=rows | beam.Reshuffle())
    assert (row.element, row.attempts, row.model_id) == (7, 2, None)
    assert (row.event_time, time, window) == (Timestamp(7.5), 7.5, (0.0, 10.0))


def test_model_id_is_the_key_if_the_model_has_no_path(run):
    handler = KeyedModelHandler([KeyModelMapping(["a", "b"], Picky()), KeyModelMapping(["c"], Picky("c.bin"))])
    rows = run.values(rows=rows_of(run.create([("b", 7), ("c", 7), ("d", 7)]), handler))
    assert {row.key: row.model_id for row in rows} == {"b": "a", "c": "c.bin", "d": None}
    assert {row.element for row in rows} == {("b", 7), ("c", 7), ("d", 7)}


@pytest.mark.filterwarnings("ignore:apache_beam's own RunInference")
def test_rows_from_beams_dead_letters(run):
    rows = rows_of(run.create([7, 8]), Picky(min_batch_size=2, max_batch_size=2), incumbent.RunInference)
    (row,) = run.values(rows=rows)
    assert (row.stage, row.index, row.element, row.message) == ("inference", 0, [7, 8], "seven\nof them")
    assert (row.attempts, row.model_id, row.key) == (1, None, None)


def test_records_keep_their_attributes_across_a_shuffle(run):
    _, dead = run.create(["7", "x"]) | RunInference(Picky("m").with_preprocess_fn(int)).with_exception_handling()
    bad, text = run.values(
        inference=dead.failed_inferences | "A" >> beam.Reshuffle(), pre=dead.failed_preprocessing[0] | beam.Reshuffle()
    )
    assert all(isinstance(record[1], ErrorRecord) for record in (*bad, *text))
    assert (bad[0][0], bad[0][1].model_id, bad[0][1].source) == ([7], "m", None)
    assert (text[0][0], text[0][1].source) == ("x", "x")
