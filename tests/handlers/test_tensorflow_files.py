"""SavedModels and files of Keras say how many numbers they take."""

from __future__ import annotations

import json
import zipfile

import pytest

from headrace.core.model_files import ModelFile
from headrace.handlers.model_recognition import tensorflow as recognise
from large import tensorflow


def keras_file(path, *shapes):
    inputs = [{"batch_shape": shape, "name": name} for shape, name in zip(shapes, "ab", strict=False)]
    layers = [{"class_name": "InputLayer", "config": config} for config in inputs]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps({"config": {"layers": [*layers, {"class_name": "Dense"}]}}))
    return ModelFile(str(path))


@pytest.mark.parametrize(("shape", "width"), [([None, 3], 3), ([None, None], None), ([None, 8, 8, 1], None)])
def test_a_file_of_keras_has_a_width(tmp_path, shape, width):
    known = recognise(keras_file(tmp_path / "model.keras", shape))
    assert (known.handler, known.width) == ("tensorflow-numpy", width)


def test_several_inputs_are_columns(tmp_path):
    known = recognise(keras_file(tmp_path / "model.keras", [None, 1], [None, 1]))
    assert (known.arguments, known.columns) == ({"columns_are_inputs": True}, ("a", "b"))
    assert known.what == "a model of Keras with 2 inputs"


@pytest.mark.large
def test_what_keras_saves_has_a_width(tmp_path):
    layers = tensorflow.keras.layers
    model = tensorflow.keras.Sequential([layers.Input((3,)), layers.Dense(2)])
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "saved", verbose=False)
    for name in ("model.keras", "saved"):
        assert recognise(ModelFile(str(tmp_path / name))).width == 3


@pytest.mark.large
def test_several_inputs_of_a_saved_model_are_columns(tmp_path):
    keras = tensorflow.keras
    inputs = [keras.Input((1,), name="age"), keras.Input((1,), name="income")]
    keras.Model(inputs, keras.layers.Add()(inputs)).export(tmp_path / "saved", verbose=False)
    known = recognise(ModelFile(str(tmp_path / "saved")))
    assert (known.arguments, set(known.columns)) == ({"columns_are_inputs": True}, {"age", "income"})
