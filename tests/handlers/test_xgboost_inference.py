"""XGBoost models of both interfaces, on examples of every kind, predict as by hand and as with Beam's handlers."""

from __future__ import annotations

import collections
import functools
import importlib
import math
import sys
import types

import numpy
import pandas
import pytest
import scipy.sparse
import xgboost

from beam_compat import BeamCompatContract, ColumnsContract
from headrace import ConfigurationError, predict
from headrace.cli.main import main
from headrace.handlers import xgboost_inference
from headrace.handlers.xgboost_inference import (
    XGBoostModelHandlerDatatable,
    XGBoostModelHandlerNumpy,
    XGBoostModelHandlerPandas,
    XGBoostModelHandlerSciPy,
    default_xgboost_inference_fn,
)
from headrace.testing import HandlerContract, nearly_equal
from toys import ODD_ARRAYS, infer, inferences

pytestmark = pytest.mark.large

RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(200, 3))
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])

SPLITS = [slice(0, 2), slice(2, 3), slice(3, 6), slice(6, 8), slice(8, 13)]
ARRAYS = [FEATURES[split] for split in SPLITS]
FRAMES = [FRAME[split] for split in SPLITS]
SPARSE = [scipy.sparse.csr_matrix(array) for array in ARRAYS]


HAS_DATATABLE = sys.version_info < (3, 13)
needs_datatable = pytest.mark.skipif(not HAS_DATATABLE, reason="datatable has no wheels for Python 3.13 and later")


@pytest.fixture(scope="module")
def datatable():
    return importlib.import_module("datatable")


@pytest.fixture(scope="module")
def incumbent():
    """Beam's module. It imports datatable for whatever handler; an empty module will do for the others."""
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_DATATABLE:
            patch.setitem(sys.modules, "datatable", types.SimpleNamespace(Frame=None))
        yield importlib.import_module("apache_beam.ml.inference.xgboost_inference")


@pytest.fixture(scope="module")
def classifier():
    return xgboost.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1).fit(FEATURES, LABELS)


@pytest.fixture(scope="module")
def classifier_path(classifier, folder):
    classifier.save_model(folder / "classifier.json")
    return str(folder / "classifier.json")


@pytest.fixture(scope="module")
def booster():
    return xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(FEATURES, LABELS), 5)


@pytest.fixture(scope="module")
def booster_path(booster, folder):
    booster.save_model(folder / "booster.ubj")
    return str(folder / "booster.ubj")


@pytest.mark.filterwarnings("ignore:.*Empty dataset at worker:UserWarning")
class XGBoostContract(BeamCompatContract):
    required = ("model_class", "model_state")
    beams_model_id = False


class TestNumpyContract(XGBoostContract, ColumnsContract):
    frame = FRAME[:20]
    examples = ARRAYS
    bad_example = numpy.zeros((2, 4))
    inference_args = {"output_margin": True}
    odd_examples = [
        *ODD_ARRAYS,
        numpy.zeros((2, 3)),
        numpy.zeros((0, 3)),
        numpy.zeros(2),
        numpy.zeros(4),
        [[1, 0, None]],
        scipy.sparse.csr_matrix(FEATURES[:2]),
        FRAME[:1],
        "no array",
    ]

    def handler(self, classifier_path):
        return XGBoostModelHandlerNumpy(xgboost.XGBClassifier, classifier_path, max_batch_size=4)

    def beams(self, incumbent, classifier_path):
        return incumbent.XGBoostModelHandlerNumpy(xgboost.XGBClassifier, classifier_path)


class TestPandasContract(XGBoostContract, ColumnsContract):
    frame = FRAME[:20].astype("float32")
    examples = FRAMES
    bad_example = FRAME[:1].assign(a="tall")
    odd_examples = [
        *(FRAME[:2].assign(a=a) for a in (1, True, numpy.float32(1), None, numpy.nan)),
        *(FRAME[:2].astype({"a": kind}) for kind in ("category", object, "Float64")),
        FRAME.iloc[0],
        FRAME[:0],
        FRAME[:2][["c", "b", "a"]],
        FRAME[:2].assign(d=1.0),
        FRAME[:2][["a", "b"]],
    ]

    def handler(self, booster_path):
        return XGBoostModelHandlerPandas("Booster", booster_path)

    def beams(self, incumbent, booster_path):
        return incumbent.XGBoostModelHandlerPandas(xgboost.Booster, booster_path)


class TestSciPyContract(XGBoostContract):
    bad_example = scipy.sparse.csr_matrix(numpy.ones((2, 4)))
    examples = SPARSE
    odd_examples = [*map(SPARSE[0].astype, ["float32", int]), SPARSE[0].tocsc(), SPARSE[0][:, :2], SPARSE[0][:0]]

    def handler(self, classifier_path):
        return XGBoostModelHandlerSciPy(xgboost.XGBClassifier, classifier_path)

    def beams(self, incumbent, classifier_path):
        return incumbent.XGBoostModelHandlerSciPy(xgboost.XGBClassifier, classifier_path)


@needs_datatable
class TestDatatableContract(HandlerContract):
    def handler(self, datatable, booster_path):
        return XGBoostModelHandlerDatatable(xgboost.Booster, booster_path)

    def examples(self, datatable):
        return [datatable.Frame(frame) for frame in FRAMES]

    def bad_example(self, datatable):
        return datatable.Frame(a=["tall"], b=[1.0], c=[2.0])


@needs_datatable
def test_datatables_predict_as_frames_and_zeros_are_zeros(datatable, classifier_path):
    """Beam's handler has XGBoost 3 take the zeros for missing values."""
    frame = pandas.DataFrame({"a": [0.0, 1.0], "b": [0.0, 0.0], "c": [0.5, 0.0]})
    tables = infer(XGBoostModelHandlerDatatable(xgboost.XGBClassifier, classifier_path), [datatable.Frame(frame)])
    frames = infer(XGBoostModelHandlerPandas(xgboost.XGBClassifier, classifier_path), [frame])
    assert nearly_equal(inferences(tables), inferences(frames))


class Sums(xgboost.XGBClassifier):
    """Says one thing of all rows."""

    def predict(self, rows):
        return [rows.sum()]


def test_examples_are_one_call_if_the_model_predicts_row_by_row(classifier, monkeypatch):
    calls, before = [], type(classifier).predict

    @functools.wraps(before)
    def predict(self, rows, **arguments):
        calls.append(rows)
        return before(self, rows, **arguments)

    monkeypatch.setattr(type(classifier), "predict", predict)
    assert len(default_xgboost_inference_fn(ARRAYS, classifier)) == len(ARRAYS)
    assert len(calls) == 1
    of_one = {"base_margin": numpy.ones(2)}
    default_xgboost_inference_fn([FEATURES[:2], FEATURES[2:4]], classifier, of_one)
    assert len(calls) == 3
    assert nearly_equal(inferences(default_xgboost_inference_fn(ARRAYS, Sums())), [[one.sum()] for one in ARRAYS])


def test_order_of_one_frame_s_columns_does_not_change_another(classifier):
    frames = [FRAME[:20], FRAME[["c", "b", "a"]][:20]]  # the model knows no names
    alone = [classifier.predict_proba(frame.to_numpy()) for frame in frames]
    assert not nearly_equal(*alone)
    assert nearly_equal(inferences(default_xgboost_inference_fn(frames, classifier, method="predict_proba")), alone)


def test_frames_with_different_categories_predict_as_alone(folder):
    table = pandas.DataFrame({"colour": pandas.Categorical(["red", "blue"] * 20), "height": numpy.arange(40.0)})
    make = functools.partial(xgboost.XGBClassifier, n_estimators=2, n_jobs=1, enable_categorical=True)
    model = make().fit(table, [0, 1] * 20)
    model.save_model(folder / "colours.json")
    handler = XGBoostModelHandlerPandas(make, folder / "colours.json")
    frames = [table[n : n + 1].assign(colour=lambda t: t["colour"].cat.remove_unused_categories()) for n in range(4)]
    assert nearly_equal(inferences(infer(handler, frames)), [model.predict(frame) for frame in frames])


def halves(batch, model, inference_args=None):
    return [xgboost_inference.PredictionResult(example, len(example) / 2, "mine") for example in batch]


@pytest.mark.parametrize("narrow", [FEATURES[0, :2], FEATURES[:2, :2]], ids=["a row", "a matrix"])
def test_examples_with_too_few_columns_are_refused(booster_path, narrow):
    handler = XGBoostModelHandlerNumpy(xgboost.Booster, booster_path, min_batch_size=3, max_batch_size=3)
    good, bad, also_good = predict(handler, [FEATURES[0], narrow, FEATURES[2]], on_failure="yield")
    assert "an example has 2 columns, and the model 3 features" in str(bad.error)
    assert nearly_equal([good.inference, also_good.inference], inferences(predict(handler, [FEATURES[0], FEATURES[2]])))
    assert len(list(predict(handler, [narrow], inference_args={"validate_features": False}))) == 1


def test_sparse_matrices_may_lack_their_last_columns(booster_path):
    handler = XGBoostModelHandlerSciPy(xgboost.Booster, booster_path)
    wide, narrow = (scipy.sparse.csr_matrix(matrix) for matrix in ([[1.0, 2.0, 0.0]], [[1.0, 2.0]]))
    assert nearly_equal(inferences(predict(handler, [narrow])), inferences(predict(handler, [wide])))


def test_inference_fn_replaces_the_call(booster_path):
    handler = XGBoostModelHandlerNumpy(xgboost.Booster, booster_path, halves)
    assert [(one.inference, one.model_id) for one in infer(handler, ARRAYS[:2])] == [(1, "mine"), (0.5, "mine")]
    assert not handler.columns_equal_rows()


def test_a_method_is_what_an_estimator_is_asked(classifier, classifier_path):
    handler = XGBoostModelHandlerNumpy(xgboost.XGBClassifier, classifier_path, method="predict_proba")
    expected = classifier.predict_proba(FEATURES[:4])
    assert nearly_equal([result.inference for result in infer(handler, list(FEATURES[:4]))], list(expected))
    assert nearly_equal(handler.run_columns(FEATURES[:4], handler.load_model()).inference, expected)
    named = infer(handler.with_named_outputs(), list(FEATURES[:4]))[0].inference
    assert (named.dtype.names, named.tolist()) == (("0", "1"), tuple(expected[0].tolist()))


def test_a_method_that_the_class_or_the_model_lacks_is_refused(booster_path):
    with pytest.raises(ConfigurationError, match="Booster has no predict_proba; it has predict"):
        XGBoostModelHandlerNumpy(xgboost.Booster, booster_path, method="predict_proba")
    made = XGBoostModelHandlerNumpy(functools.partial(xgboost.Booster), booster_path, method="predict_proba")
    with pytest.raises(ConfigurationError, match="Booster has no predict_proba"):
        made.load_model()
    for wrong in ("Boster", "__version__", None, 1):
        with pytest.raises(ConfigurationError, match="model_class must be a class of XGBoost's"):
            XGBoostModelHandlerNumpy(wrong, "model.json")


def test_datatable_is_needed_by_its_handler_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatable", None)
    XGBoostModelHandlerNumpy(xgboost.Booster, "model.json")
    with pytest.raises(ImportError, match=r'datatable is not installed; .*pip install .*"datatable>='):
        XGBoostModelHandlerDatatable(xgboost.Booster, "model.json")


CARS = [{"colour": colour, "age": age, "km": 1.0 * km} for km in range(20) for colour, age in (("red", 1), ("blue", 3))]


@pytest.fixture(scope="module")
def cars(tmp_path_factory):
    """A model of text and numbers, some of them missing; its path."""
    path = str(tmp_path_factory.mktemp("cars") / "cars.ubj")
    frame = pandas.DataFrame(CARS).astype({"colour": "category"})
    model = xgboost.XGBClassifier(n_estimators=3, n_jobs=1, enable_categorical=True).fit(
        frame, frame["km"] * frame["age"] > 10
    )
    model.save_model(path)
    return model, path


Car = collections.namedtuple("Car", ["id", "km", "age", "colour"])


@pytest.mark.parametrize("cls", [xgboost.XGBClassifier, xgboost.Booster])
@pytest.mark.parametrize("made", [dict, lambda row: Car(7, row["km"], row["age"], row["colour"]), pandas.Series])
def test_rows_of_text_and_numbers_predict_as_a_frame_of_all(cars, made, cls):
    model, path = cars
    rows = [*CARS, {"colour": None, "age": None, "km": 3.0}, {"colour": "red", "age": 2.0, "km": math.nan}]
    frame = pandas.DataFrame(rows).astype({"colour": pandas.CategoricalDtype(["blue", "red"])})
    expected = model.predict_proba(frame)[:, 1] if cls is xgboost.Booster else model.predict(frame)
    handler = XGBoostModelHandlerPandas(cls, path)
    assert nearly_equal(inferences(infer(handler, list(map(made, rows)))), list(expected))
    assert nearly_equal(inferences(one for row in rows for one in infer(handler, [made(row)])), list(expected))


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_text_in_files_becomes_the_model_s_categories(cars, tmp_path, ending):
    model, path = cars
    frame = pandas.DataFrame(CARS * 30).assign(id="7").sample(frac=1, random_state=1)
    write = {
        "csv": functools.partial(frame.to_csv, index=False),
        "parquet": functools.partial(frame.to_parquet, index=False),
        "jsonl": functools.partial(frame.to_json, orient="records", lines=True),
    }
    write[ending](tmp_path / f"cars.{ending}")
    options = ["--output", str(tmp_path / "out.csv"), "--method", "predict_proba", "--explode"]
    assert main(["run", str(tmp_path / f"cars.{ending}"), "--model", path, *options]) == 0
    found = pandas.read_csv(tmp_path / "out.csv")[["prediction_0", "prediction_1"]].to_numpy()
    expected = model.predict_proba(frame[["colour", "age", "km"]].astype({"colour": "category"}))
    assert numpy.array_equal(found.astype("float32"), expected)


def test_a_colour_that_the_model_does_not_know_is_the_row_s_own_failure(cars):
    rows = [CARS[0], {**CARS[0], "colour": "mauve"}, CARS[1], {**CARS[0], "age": "old"}]
    handler = XGBoostModelHandlerPandas(xgboost.XGBClassifier, cars[1])
    first, unknown, third, text = predict(handler, rows, on_failure="yield")
    assert nearly_equal([first.inference, third.inference], inferences(predict(handler, [CARS[0], CARS[1]])))
    assert "column 'colour' holds 'mauve', which is none of the model's categories" in str(unknown.error)
    assert "column 'age' holds 'old', which is not a finite number" in str(text.error)
