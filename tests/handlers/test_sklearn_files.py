"""Files of scikit-learn say which handler runs them, and which columns they want."""

from __future__ import annotations

import pickle

import joblib
import numpy
import pandas
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import ModelFile
from headrace.handlers.model_recognition import sklearn as recognise

FRAME = pandas.DataFrame({"age": [20, 30, 40, 50] * 5, "Größe": [1.5, 2.0, 1.0, 3.0] * 5, "city": list("abab") * 5})
NUMBERS = FRAME[["age", "Größe"]]
LABELS = numpy.array([0, 0, 1, 1] * 5)
ENCODED = ColumnTransformer([("city", OneHotEncoder(), ["city"]), ("rest", "passthrough", ["age"])])
CLASSIFIER = LogisticRegression(max_iter=1000)


class Lines:
    """A model that says nothing of itself."""

    def predict(self, rows):
        return rows


MODELS = {
    "plain": (lambda: CLASSIFIER.fit(NUMBERS, LABELS), ("age", "Größe"), "LogisticRegression"),
    "forest": (lambda: RandomForestClassifier(3).fit(NUMBERS, LABELS), ("age", "Größe"), "RandomForestClassifier"),
    "pipeline": (lambda: make_pipeline(ENCODED, CLASSIFIER).fit(FRAME, LABELS), ("age", "city"), "Pipeline"),
    "nested": (
        lambda: make_pipeline(make_pipeline("passthrough", StandardScaler()), CLASSIFIER).fit(NUMBERS, LABELS),
        ("age", "Größe"),
        "Pipeline",
    ),
    "search": (
        lambda: GridSearchCV(make_pipeline(ENCODED, CLASSIFIER), {"logisticregression__C": [1, 2]}).fit(FRAME, LABELS),
        ("age", "city"),
        "GridSearchCV",
    ),
    "voting": (
        lambda: VotingClassifier([("a", CLASSIFIER)]).fit(NUMBERS, LABELS),
        ("age", "Größe"),
        "VotingClassifier",
    ),
    "arrays": (lambda: Ridge().fit(NUMBERS.to_numpy(), LABELS), None, "Ridge"),
}


def with_skops(model, path):
    import skops.io

    skops.io.dump(model, path)


WAYS = {
    "pickle": (lambda model, path: path.write_bytes(pickle.dumps(model)), {}),
    "joblib": (joblib.dump, {"model_file_type": "joblib"}),
    "compressed": (lambda model, path: joblib.dump(model, path, compress=3), {"model_file_type": "joblib"}),
    "skops": (with_skops, {"model_file_type": "skops"}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_it_takes(tmp_path, name, way):
    make, columns, cls = MODELS[name]
    write, arguments = WAYS[way]
    path = tmp_path / "model.skops" if way == "skops" else tmp_path / "model.pkl"
    write(make(), path)
    known = recognise(ModelFile(str(path)))
    assert known.handler == ("sklearn-numpy" if columns is None else "sklearn-pandas")
    assert (known.columns, known.width) == (columns, 2 if columns is None else None)
    assert (known.what, known.arguments) == (f"a {cls} of scikit-learn", arguments)
    if name == "pipeline":  # a column that is dropped may be absent
        model = make()
        assert (model.predict(FRAME[list(columns)]) == model.predict(FRAME)).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_vectorizer_takes_texts(tmp_path, way):
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good", "bad"], [1, 0])
    path = tmp_path / ("model.joblib.gz" if way == "compressed" else "model")
    WAYS[way][0](model, path)
    known = recognise(ModelFile(str(path)))
    assert (known.handler, known.takes) == ("sklearn-numpy", "text")
    assert known.arguments == {**WAYS[way][1], "takes_texts": True}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"model": 1}, "it holds a dict, not a model; save the model alone"),
        (Lines(), "which does not show whether it takes frames or arrays; name the handler: --handler sklearn-pandas"),
        (LogisticRegression(), "a LogisticRegression of scikit-learn, which does not show"),
    ],
)
def test_what_does_not_say_it_has_to_be_named(tmp_path, content, error):
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(ConfigurationError, match=error):
        recognise(ModelFile(str(path)))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_other_files_are_none_of_these(tmp_path, content):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    assert recognise(ModelFile(str(path))) is None
