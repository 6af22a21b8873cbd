"""scikit-learn models, saved as users save them, predict as they do by hand and as with Beam's handlers."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import joblib
import numpy
import pandas
import pytest
import scipy.sparse
from apache_beam.ml.inference import sklearn_inference as incumbent
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from beam_compat import BeamCompatContract, ColumnsContract
from headrace import ConfigurationError, MissingExtraError, predict
from headrace.handlers.sklearn_inference import ModelFileType, SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.testing import nearly_equal
from toys import ODD_ARRAYS, infer

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3))
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
ARRAYS = list(FEATURES[:6])

TABLE = pandas.DataFrame({"height": FEATURES[:, 0], "colour": numpy.where(LABELS, "red", "blue")})
FRAMES = [TABLE.iloc[[i]] for i in range(6)]
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])


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


class TestNumpyContract(BeamCompatContract, ColumnsContract):
    frame = FRAME
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
        return SklearnModelHandlerPandas(table_uri, incumbent.ModelFileType.JOBLIB)

    def beams(self, table_uri):
        return incumbent.SklearnModelHandlerPandas(table_uri, incumbent.ModelFileType.JOBLIB)


class TestColumnsOfFrames(ColumnsContract):
    frame = FRAME[["c", "a", "b"]].assign(more=1.0)  # in another order, with a column that the model does not know
    kinds = ("dict", "frame", "record batch", "table")

    @pytest.fixture
    def handler(self, folder):
        return SklearnModelHandlerPandas(save(LogisticRegression().fit(FRAME, LABELS), folder / "numbers.pkl"))


def summed(model, batch, inference_args=None):
    sums = [frame["height"].item() + inference_args["more"] for frame in batch]
    return sums, [frame.index.item() for frame in batch]


def test_pandas_handler_takes_an_inference_fn_that_also_returns_the_examples(table_uri):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB, inference_fn=summed)
    results = infer(handler, FRAMES, {"more": 1})
    assert [result.example for result in results] == [0, 1, 2, 3, 4, 5]
    assert nearly_equal([result.inference for result in results], list(TABLE["height"][:6] + 1))


def test_two_outputs_are_not_the_predictions_of_a_batch_of_two(folder):
    uri = save(BayesianRidge().fit(FEATURES, FEATURES[:, 0]), folder / "bayes.pkl")
    frames = [pandas.DataFrame([row]) for row in ARRAYS[:2]]
    for handler, batch in ((SklearnModelHandlerNumpy(uri), ARRAYS[:2]), (SklearnModelHandlerPandas(uri), frames)):
        assert len(infer(handler, batch)) == 2
        with pytest.raises(ValueError, match="tuple of 2 outputs"):
            infer(handler, batch, {"return_std": True})


@pytest.mark.parametrize("wrong", ["pickle", 1, None])
def test_unknown_file_type_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"Type\.PICKLE or ModelFileType\.JOBLIB or ModelFileType\.SKOPS, not"):
        SklearnModelHandlerNumpy("model.pkl", wrong)
    with pytest.raises(ConfigurationError, match=r"trusted goes with model_file_type=ModelFileType\.SKOPS"):
        SklearnModelHandlerNumpy("model.pkl", trusted=["a.B"])


@pytest.mark.parametrize("rows", [0, 2])
def test_frame_must_have_one_row(table_uri, rows):
    handler = SklearnModelHandlerPandas(table_uri, ModelFileType.JOBLIB)
    with pytest.raises(ValueError, match=rf"single row.*\({rows}, 2\)"):
        infer(handler, [FRAMES[0], TABLE.iloc[:rows]])


@pytest.mark.filterwarnings("ignore:X has feature names, but LinearRegression was fitted without feature names")
def test_column_order_matters_to_a_model_without_names(folder):
    model = LinearRegression().fit([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [1.0, 10.0, 0.0])
    frame = pandas.DataFrame({"a": [1.0], "b": [2.0]})
    results = infer(SklearnModelHandlerPandas(save(model, folder / "nameless.pkl")), [frame, frame[["b", "a"]]])
    assert nearly_equal([float(result.inference) for result in results], [21.0, 12.0])


def test_missing_skops_is_named(forest_uri, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(MissingExtraError, match="'skops'"):
        SklearnModelHandlerNumpy(forest_uri, ModelFileType.SKOPS).load_model()


def test_a_model_of_texts_gets_texts(folder):
    fitted = make_pipeline(CountVectorizer(), LogisticRegression()).fit(["good", "bad", "good"], [1, 0, 1])
    handler = SklearnModelHandlerNumpy(save(fitted, folder / "texts.pkl"), takes_texts=True)
    texts = ["good", "", "Köln", "a longer one, and bad"]
    examples = [handler.example_from_row({"t": text}) for text in texts]
    assert [result.inference for result in predict(handler, examples)] == list(fitted.predict(texts))
    for row in ({"t": None}, {"t": 5}, {"t": "a", "u": "b"}):
        with pytest.raises(ValueError, match=r"no text|choose one column"):
            handler.example_from_row(row)
    with pytest.raises(ConfigurationError, match="takes_texts goes with SklearnModelHandlerNumpy"):
        SklearnModelHandlerPandas("model.pkl", takes_texts=True)


HEIGHTS = [frame[["height"]] for frame in FRAMES]


def first_feature(model, batch, inference_args=None):
    return [example[0] for example in batch]


class Unusual(BaseEstimator):
    """Answers as classifiers of several outputs do, and as vectorizers do."""

    def predict_proba(self, rows):
        return [numpy.full((len(rows), 2), 0.5), numpy.full((len(rows), 3), 0.1)]

    def transform(self, rows):
        return scipy.sparse.csr_matrix(rows)


@pytest.fixture(scope="module")
def of_frames(folder):
    """A model of frames, and its file."""
    model = RandomForestClassifier(5, random_state=0).fit(TABLE[["height"]], TABLE["colour"])
    return model, save(model, folder / "of_frames.pkl")


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
def test_a_method_is_what_the_model_is_asked(method, forest, forest_uri, of_frames):
    model, uri = of_frames
    for handler, batch, rows, asked in (
        (SklearnModelHandlerNumpy(forest_uri, method=method), ARRAYS, numpy.array(ARRAYS), forest),
        (SklearnModelHandlerPandas(uri, method=method), HEIGHTS, pandas.concat(HEIGHTS), model),
    ):
        expected = getattr(asked, method)(rows)
        assert numpy.array_equal([result.inference for result in infer(handler, batch)], expected)
        assert handler.columns_equal_rows()
        assert numpy.array_equal(handler.run_columns(rows, handler.load_model()).inference, expected)


def test_answers_of_methods_have_a_row_for_each_example(folder):
    uri = save(Unusual(), folder / "unusual.pkl")
    two, three = infer(SklearnModelHandlerNumpy(uri, method="predict_proba"), ARRAYS[:2])[1].inference
    assert (two.tolist(), three.tolist()) == ([0.5] * 2, [0.1] * 3)
    sparse = SklearnModelHandlerNumpy(uri, method="transform")
    assert nearly_equal([result.inference for result in infer(sparse, ARRAYS)], ARRAYS)


def test_named_outputs_are_those_of_the_models_classes(forest_uri, of_frames, folder):
    handler = SklearnModelHandlerNumpy(forest_uri, method="predict_proba")
    found = infer(handler.with_named_outputs(), ARRAYS)[0].inference
    assert found.dtype.names == ("0", "1")
    assert found.tolist() == tuple(infer(handler, ARRAYS)[0].inference)
    colours = SklearnModelHandlerPandas(of_frames[1], method="predict_proba").with_named_outputs()
    assert infer(colours, HEIGHTS)[0].inference.dtype.names == ("blue", "red")
    scaler = save(StandardScaler().fit(FEATURES), folder / "scaler.pkl")
    scaled = SklearnModelHandlerNumpy(scaler, method="transform").with_named_outputs()
    assert infer(scaled, ARRAYS)[0].inference.dtype.names == ("x0", "x1", "x2")
    pairs = SVC(decision_function_shape="ovo").fit(FEATURES, numpy.arange(40) % 3)
    of_pairs = SklearnModelHandlerNumpy(save(pairs, folder / "pairs.pkl"), method="decision_function")
    assert infer(of_pairs.with_named_outputs(), ARRAYS)[0].inference.dtype.names is None
    own = SklearnModelHandlerNumpy(forest_uri, inference_fn=first_feature)
    assert repr(infer(own.with_named_outputs(), ARRAYS)) == repr(infer(own, ARRAYS))


def test_a_method_that_there_is_not_is_refused(forest_uri):
    with pytest.raises(ConfigurationError, match="not 'predict_probs'; did you mean 'predict_proba'"):
        SklearnModelHandlerNumpy(forest_uri, method="predict_probs")
    with pytest.raises(ConfigurationError, match="leave method out"):
        SklearnModelHandlerNumpy(forest_uri, inference_fn=first_feature, method="predict_proba")
    with pytest.raises(ConfigurationError, match=r"Forest.* has no transform; it has predict and predict_proba"):
        SklearnModelHandlerNumpy(forest_uri, method="transform").load_model()
