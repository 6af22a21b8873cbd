"""Files of XGBoost, and pickles of its estimators, name their class and columns."""

from __future__ import annotations

import pickle

import numpy
import pandas
import pytest

from headrace.core.model_files import ModelFile
from headrace.handlers.model_recognition import xgboost as recognise
from large import xgboost

pytestmark = pytest.mark.large

FRAME = pandas.DataFrame({"age": [20, 30, 40, 50] * 5, "Größe": [1.5, 2.0, 1.0, 3.0] * 5})
ODD = FRAME.rename(columns={"age": 'a "quoted" \\ name', "Größe": "}, {"})
LABELS = numpy.array([0, 0, 1, 1] * 5)
CLASSES = ["XGBClassifier", "XGBRegressor", "XGBRanker", "Booster"]


def fitted(cls, rows):
    if cls == "Booster":
        return xgboost.train({}, xgboost.DMatrix(rows, LABELS), 2)
    options = {"qid": numpy.zeros(len(LABELS))} if cls == "XGBRanker" else {}
    return getattr(xgboost, cls)(n_estimators=2).fit(rows, LABELS, **options)


@pytest.mark.parametrize("rows", [FRAME, ODD, FRAME.to_numpy()], ids=["frame", "odd", "array"])
@pytest.mark.parametrize("ending", ["json", "ubj"])
@pytest.mark.parametrize("cls", CLASSES)
def test_a_saved_model_names_class_and_columns(tmp_path, cls, ending, rows):
    path = str(tmp_path / f"model.{ending}")
    fitted(cls, rows).save_model(path)
    known = recognise(ModelFile(path))
    assert known.arguments == {"model_class": cls}
    if isinstance(rows, pandas.DataFrame):
        assert (known.handler, known.columns) == ("xgboost-pandas", tuple(rows.columns))
    else:
        assert (known.handler, known.columns, known.width) == ("xgboost-numpy", None, 2)


@pytest.mark.parametrize("rows", [FRAME, FRAME.to_numpy()], ids=["frame", "array"])
@pytest.mark.parametrize("cls", CLASSES)
def test_a_pickled_estimator_runs_as_one_of_scikit_learn(tmp_path, cls, rows):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(fitted(cls, rows)))
    known = recognise(ModelFile(str(path)))
    if cls == "Booster":  # its predict takes a DMatrix only
        assert known is None
    elif isinstance(rows, pandas.DataFrame):
        assert (known.handler, known.columns) == ("sklearn-pandas", ("age", "Größe"))
    else:
        assert (known.handler, known.columns, known.width) == ("sklearn-numpy", None, 2)


@pytest.mark.parametrize("content", [b"", b"{", b'{"learner": 1}'[:5], b"learner"])
def test_other_files_are_none_of_these(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    assert recognise(ModelFile(str(path))) is None
