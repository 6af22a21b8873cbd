"""scikit-learn models, saved as users save them, predict as they do by hand and as with Beam's handlers."""

from __future__ import annotations

import gc
import pickle
import sys
import warnings
from pathlib import Path

import joblib
import numpy
import pandas
import pytest
from apache_beam.ml.inference import sklearn_inference as incumbent
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from beam_compat import BeamCompatContract
from headrace import ConfigurationError, MissingExtraError, predict
from headrace.handlers.sklearn_inference import ModelFileType, SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.rows.blocks import TypedRow
from headrace.testing import nearly_equal
from toys import infer

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3))
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
ARRAYS = list(FEATURES[:6])

TABLE = pandas.DataFrame({"height": FEATURES[:, 0], "colour": numpy.where(LABELS, "red", "blue")})
FRAMES = [TABLE.iloc[[i]] for i in range(6)]


ODD_ARRAYS = [
    *(numpy.array([1, 0, 2], dtype) for dtype in ("int64", "int8", "uint64", "bool", "float32", "float16", "object")),
    numpy.array([1, None, 2.5], dtype=object),
    numpy.array(["1", "0", "2"]),
    numpy.array(["1", "0", "2"], dtype=object),
    numpy.array([0.0, numpy.nan, 0.0]),
    numpy.array([0.0, 1e39, 0.0]),
    numpy.array([[0.0, 1.0, 0.0]]),
    numpy.array([]),
    [1, 0, 2],
    [1.5, 0, None],
]
ODD_FRAMES = [
    *(TABLE.iloc[[0]].assign(height=height) for height in (1, True, numpy.float32(1), "1.5", None, numpy.nan, "tall")),
    TABLE.iloc[[0]].astype({"height": object}),
    TABLE.iloc[[0]].astype({"height": "Float64"}),
    TABLE.iloc[[0]].astype({"colour": "category"}),
    *(TABLE.iloc[[0]].assign(colour=colour) for colour in ("green", None, 1, 1.0)),
    TABLE.iloc[[0]][["colour", "height"]],
    TABLE.iloc[[0]].assign(more=1),
    TABLE.iloc[[0]][["height"]],
]


def save(model, path: Path, how=pickle) -> str:
    with path.open("wb") as file:
        how.dump(model, file)
    return str(path)


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(n_estimators=5, random_state=0).fit(FEATURES, LABELS)


@pytest.fixture(scope="module")
def forest_uri(forest, folder):
    return save(forest, folder / "forest.pkl")


@pytest.fixture(scope="module")
def table_model():
    encoder = ColumnTransformer([("colour", OneHotEncoder(), ["colour"])], remainder="passthrough")
    return make_pipeline(encoder, LinearRegression()).fit(TABLE, FEATURES[:, 1])


@pytest.fixture(scope="module")
def table_uri(table_model, folder):
    return save(table_model, folder / "table.joblib", joblib)


class TestNumpyContract(BeamCompatContract):
    examples = ARRAYS
    bad_example = numpy.zeros(2)
    odd_examples = ODD_ARRAYS

    def handler(self, forest_uri):
        return SklearnModelHandlerNumpy(forest_uri, max_batch_size=4)

    def beams(self, forest_uri):
        return incumbent.SklearnModelHandlerNumpy(forest_uri)


class TestPandasContract(BeamCompatContract):
    examples = FRAMES
    bad_example = TABLE.iloc[[0]].assign(height="tall")
    odd_examples = ODD_FRAMES

    def handler(self, table_uri):
        return SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)

    def beams(self, table_uri):
        return incumbent.SklearnModelHandlerPandas(table_uri, incumbent.ModelFileType.JOBLIB)


@pytest.mark.parametrize("how", [pickle, joblib])
def test_model_file_is_closed(forest, folder, how):
    uri = save(forest, folder / f"closed.{how.__name__}", how)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SklearnModelHandlerNumpy(uri, ModelFileType[how.__name__.upper()]).load_model()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def probabilities(model, batch, inference_args=None):
    columns = model.predict_proba(numpy.stack(batch)).T
    return {"no": columns[0], "yes": columns[1] * (inference_args or {}).get("scale", 1)}


def test_numpy_handler_takes_an_inference_fn(forest, forest_uri):
    handler = SklearnModelHandlerNumpy(forest_uri, inference_fn=probabilities)
    expected = [{"no": no, "yes": 10 * yes} for no, yes in forest.predict_proba(FEATURES[:6])]
    results = infer(handler, ARRAYS, {"scale": 10})
    assert nearly_equal([result.inference for result in results], expected)


def summed(model, batch, inference_args=None):
    sums = [frame["height"].item() + inference_args["more"] for frame in batch]
    return sums, [frame.index.item() for frame in batch]


def test_pandas_handler_takes_an_inference_fn_that_also_returns_the_examples(table_uri):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB, inference_fn=summed)
    results = infer(handler, FRAMES, {"more": 1})
    assert [result.example for result in results] == [0, 1, 2, 3, 4, 5]
    assert nearly_equal([result.inference for result in results], list(TABLE["height"][:6] + 1))


class Scaled(BaseEstimator):
    """Sums its features, times a factor of the call."""

    def predict(self, inputs, factor=1):
        return numpy.asarray(inputs, dtype=float).sum(axis=1) * factor


def test_inference_args_go_to_predict(folder):
    uri = save(Scaled(), folder / "scaled.pkl")
    (array,) = infer(SklearnModelHandlerNumpy(uri), [numpy.array([1.0, 2.0])], {"factor": 10})
    (frame,) = infer(SklearnModelHandlerPandas(uri), [pandas.DataFrame({"a": [1], "b": [2]})], {"factor": 10})
    assert array.inference == frame.inference == 30


@pytest.mark.parametrize("handler_class", [SklearnModelHandlerNumpy, SklearnModelHandlerPandas])
def test_two_outputs_are_not_the_predictions_of_a_batch_of_two(handler_class, folder):
    uri = save(BayesianRidge().fit(FEATURES, FEATURES[:, 0]), folder / "bayes.pkl")
    batch = ARRAYS[:2] if handler_class is SklearnModelHandlerNumpy else [pandas.DataFrame([row]) for row in ARRAYS[:2]]
    assert len(infer(handler_class(uri), batch)) == 2
    with pytest.raises(ValueError, match="tuple of 2 outputs"):
        infer(handler_class(uri), batch, {"return_std": True})


def test_beams_file_type_is_understood(table_uri, table_model):
    handler = SklearnModelHandlerPandas(table_uri, incumbent.ModelFileType.JOBLIB)
    assert type(handler.load_model()) is type(table_model)


@pytest.mark.parametrize("wrong", ["pickle", 1, None])
def test_unknown_file_type_is_refused(wrong):
    with pytest.raises(
        ConfigurationError, match=r"ModelFileType\.PICKLE or ModelFileType\.JOBLIB or ModelFileType\.SKOPS, not"
    ):
        SklearnModelHandlerNumpy("model.pkl", wrong)


@pytest.mark.parametrize("rows", [0, 2])
def test_frame_must_have_one_row(table_uri, rows):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)
    with pytest.raises(ValueError, match=rf"single row.*\({rows}, 2\)"):
        infer(handler, [FRAMES[0], TABLE.iloc[:rows]])


def test_frame_that_lacks_a_column_gets_no_missing_values(table_uri):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)
    with pytest.raises(ValueError, match=r"columns are missing: \{'height'\}"):
        infer(handler, [FRAMES[0], FRAMES[1][["colour"]]])


def test_column_order_does_not_matter_to_a_model_with_names(table_model, table_uri):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)
    turned = FRAMES[1][["colour", "height"]]
    for frames in ([FRAMES[0], turned], [turned, FRAMES[0]], [turned]):
        results = infer(handler, frames)
        expected = table_model.predict(pandas.concat(frames)[TABLE.columns])
        assert numpy.allclose([result.inference for result in results], expected)


@pytest.mark.filterwarnings("ignore:X has feature names, but LinearRegression was fitted without feature names")
def test_column_order_matters_to_a_model_without_names(tmp_path):
    model = LinearRegression().fit([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1.0, 10.0, 0.0])
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    handler = SklearnModelHandlerPandas(tmp_path / "model.pickle")
    frame = pandas.DataFrame({"a": [1.0], "b": [2.0]})
    results = infer(handler, [frame, frame[["b", "a"]]])
    assert nearly_equal([float(result.inference) for result in results], [21.0, 12.0])


def test_frames_of_integers_and_floats_are_one_call(table_uri, table_model, monkeypatch):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)
    rows = [TypedRow({"height": height, "colour": "red"}, {"height": "float"}) for height in (1, 1.5, 2, -3)]
    calls, before = [], type(table_model).predict
    monkeypatch.setattr(type(table_model), "predict", lambda self, frame: calls.append(frame) or before(self, frame))
    results = infer(handler, list(map(handler.example_from_row, rows)))
    (frame,) = calls
    assert numpy.allclose([result.inference for result in results], before(table_model, frame))


def test_row_becomes_an_array(forest_uri):
    example = SklearnModelHandlerNumpy(forest_uri).example_from_row({"b": "1.5", "a": 2, "c": True})
    assert (example.tolist(), example.dtype, example.shape) == ([1.5, 2.0, 1.0], numpy.float64, (3,))


def test_row_becomes_a_frame(table_uri, table_model):
    """With values of the same types: digits may be a text."""
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)
    example = handler.example_from_row({"colour": "red", "height": 0.5, "age": 7, "zip": "00501", "active": True})
    expected = pandas.DataFrame({"colour": ["red"], "height": [0.5], "age": [7], "zip": ["00501"], "active": [True]})
    pandas.testing.assert_frame_equal(example, expected)
    (prediction,) = predict(handler, [handler.example_from_row({"height": 0.5, "colour": "red"})])
    assert numpy.allclose(prediction.inference, table_model.predict(expected[["height", "colour"]]))


def test_frames_need_pandas_when_their_handler_is_made(monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace.handlers.data_frames")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas is not installed"):
        SklearnModelHandlerPandas("model.pkl")


def test_skops_is_an_extra(folder, monkeypatch):
    path = folder / "model.skops"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(MissingExtraError, match="'skops'"):
        SklearnModelHandlerNumpy(path, ModelFileType.SKOPS).load_model()


def test_types_are_trusted_in_files_of_skops_only(folder):
    with pytest.raises(ConfigurationError, match=r"trusted goes with model_file_type=ModelFileType\.SKOPS"):
        SklearnModelHandlerNumpy("model.pkl", trusted=["a.B"])


def test_a_model_of_texts_gets_texts(folder):
    fitted = make_pipeline(CountVectorizer(), LogisticRegression()).fit(["good", "bad", "good"], [1, 0, 1])
    path = folder / "texts.pkl"
    path.write_bytes(pickle.dumps(fitted))
    handler = SklearnModelHandlerNumpy(path, takes_texts=True)
    texts = ["good", "", "Köln", "a longer one, and bad"]
    examples = [handler.example_from_row({"t": text}) for text in texts]
    assert [result.inference for result in predict(handler, examples)] == list(fitted.predict(texts))
    for row in ({"t": None}, {"t": 5}, {"t": "a", "u": "b"}):
        with pytest.raises(ValueError, match=r"no text|choose one column"):
            handler.example_from_row(row)
