"""``method=`` of the handlers of scikit-learn models: what the model is asked for, and names of its outputs."""

import pickle

import numpy
import pandas
import pytest
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from headrace import ConfigurationError, predict_table
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.testing import nearly_equal
from toys import infer

FEATURES = numpy.random.default_rng(7).normal(size=(40, 3))
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
ARRAYS = list(FEATURES[:6])
TABLE = pandas.DataFrame({"height": FEATURES[:, 0], "colour": numpy.where(LABELS, "red", "blue")})
HEIGHTS = [TABLE[["height"]].iloc[[row]] for row in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def save(model, path):
    path.write_bytes(pickle.dumps(model))
    return str(path)


@pytest.fixture(scope="module")
def forest():
    return RandomForestClassifier(5, random_state=0).fit(FEATURES, LABELS)


@pytest.fixture(scope="module")
def forest_uri(forest, folder):
    return save(forest, folder / "forest.pkl")


def first_feature(model, batch, inference_args=None):
    return [example[0] for example in batch]


class SeveralOutputs(BaseEstimator):
    """Answers as classifiers of several outputs do."""

    def predict_proba(self, rows):
        """An array for each output."""
        return [numpy.full((len(rows), 2), 0.5), numpy.full((len(rows), 3), 0.1)]


class Sparse(BaseEstimator):
    """Answers as vectorizers do."""

    def transform(self, rows):
        """A sparse matrix."""
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
    several = SklearnModelHandlerNumpy(save(SeveralOutputs(), folder / "several.pkl"), method="predict_proba")
    two, three = infer(several, ARRAYS[:2])[1].inference
    assert (two.tolist(), three.tolist()) == ([0.5] * 2, [0.1] * 3)
    sparse = SklearnModelHandlerNumpy(save(Sparse(), folder / "sparse.pkl"), method="transform")
    assert nearly_equal([result.inference for result in infer(sparse, ARRAYS)], ARRAYS)


def test_named_outputs_are_those_of_the_models_classes(forest_uri, of_frames, folder):
    handler = SklearnModelHandlerNumpy(forest_uri, method="predict_proba")
    found = infer(handler.with_named_outputs(), ARRAYS)[0].inference
    assert found.dtype.names == ("0", "1")
    assert found.tolist() == tuple(infer(handler, ARRAYS)[0].inference)
    colours = SklearnModelHandlerPandas(of_frames[1], method="predict_proba").with_named_outputs()
    assert infer(colours, HEIGHTS)[0].inference.dtype.names == ("blue", "red")
    scaled = SklearnModelHandlerNumpy(
        save(StandardScaler().fit(FEATURES), folder / "scaler.pkl"), method="transform"
    ).with_named_outputs()
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


def test_columns_are_called_as_the_models_classes(of_frames):
    handler = SklearnModelHandlerPandas(of_frames[1], method="predict_proba")
    found = predict_table(handler, TABLE, columns="height", explode=True)
    assert list(found.columns[2:4]) == ["prediction_blue", "prediction_red"]
    expected = of_frames[0].predict_proba(TABLE[["height"]])
    assert nearly_equal(found[["prediction_blue", "prediction_red"]].to_numpy(), expected)
