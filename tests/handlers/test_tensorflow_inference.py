"""TensorFlow's and Keras's models, saved as users save them, predict as they do by hand and as with Beam's handlers."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import cloudpickle
import numpy
import pandas
import pytest
import tensorflow

from beam_compat import BeamCompatContract, ColumnsContract
from headrace import ConfigurationError, NotYetHonouredWarning
from headrace.handlers.tensorflow_inference import (
    ModelType,
    TFModelHandlerNumpy,
    TFModelHandlerTensor,
    default_numpy_inference_fn,
)
from headrace.testing import HandlerContract, nearly_equal
from toys import ODD_ARRAYS, infer, inferences

pytestmark = [pytest.mark.large, pytest.mark.usefixtures("module_travels")]

keras = tensorflow.keras
RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(6, 3)).astype(numpy.float32)
WEIGHT, BIAS = RNG.normal(size=(3, 2)).astype(numpy.float32), numpy.ones(2, numpy.float32)
EXPECTED = FEATURES @ WEIGHT + BIAS
ARRAYS = list(FEATURES)
BOTH = pytest.mark.parametrize("handler_class", [TFModelHandlerNumpy, TFModelHandlerTensor])


@pytest.fixture(scope="module")
def incumbent():
    """Beam's module, which cannot be imported without TensorFlow Hub; of that, it uses one function."""
    with pytest.MonkeyPatch.context() as patch:
        hub = types.ModuleType("tensorflow_hub")
        hub.resolve = str
        patch.setitem(sys.modules, "tensorflow_hub", hub)
        from apache_beam.ml.inference import tensorflow_inference

        yield tensorflow_inference


TF, TORCH = "headrace.handlers.tensorflow_inference", "headrace.handlers.pytorch_inference"


@pytest.mark.parametrize("modules", [f"{TF}, triton, torch._dynamo", f"tensorflow, {TF}, torch, {TORCH}"])
def test_no_order_of_imports_crashes_that_does_not_without_headrace(modules):
    """LLVM, which is in TensorFlow and in PyTorch's compiler, ends a process that imports TensorFlow first."""
    done = subprocess.run([sys.executable, "-c", f"import {modules}"], capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def dense():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])


class Module(tensorflow.Module):
    """No model of Keras's; its signature has two inputs."""

    @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 3]), tensorflow.TensorSpec([], name="scale")])
    def served(self, inputs, scale):
        return {"sum": tensorflow.reduce_sum(inputs, 1) * scale}


class Callable(tensorflow.Module):
    @tensorflow.function(input_signature=[tensorflow.TensorSpec([None, 3])])
    def __call__(self, inputs):
        return tensorflow.reduce_sum(inputs, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    model = dense()
    model.layers[0].set_weights([WEIGHT, BIAS])
    model.save(folder / "dense.keras")
    model.save(folder / "dense.h5")
    model.save_weights(folder / "dense.weights.h5")
    model.export(folder / "exported", verbose=False)
    tensorflow.saved_model.save(model, str(folder / "saved"))
    inputs = keras.Input((3,))
    heads = {"one": keras.layers.Dense(1)(inputs), "two": keras.layers.Dense(2)(inputs)}
    keras.Model(inputs, heads).save(folder / "named.keras")
    keras.Model(inputs, list(heads.values())).save(folder / "two.keras")
    module = Module()
    tensorflow.saved_model.save(module, str(folder / "module"), signatures=module.served)
    tensorflow.saved_model.save(Callable(), str(folder / "callable"))
    tensorflow.saved_model.save(tensorflow.Module(), str(folder / "empty"))
    return folder


@pytest.fixture(scope="module")
def uri(folder):
    return str(folder / "dense.keras")


class TestNumpyContract(BeamCompatContract, ColumnsContract):
    frame = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
    bad_example = numpy.zeros(2, numpy.float32)
    examples = ARRAYS
    inference_args = {"training": False}
    odd_examples = ODD_ARRAYS

    def handler(self, uri):
        return TFModelHandlerNumpy(uri, max_batch_size=4)

    def beams(self, incumbent, uri):
        return incumbent.TFModelHandlerNumpy(uri)


class TestSavedModelContract(HandlerContract):
    bad_example = numpy.zeros(2, numpy.float32)
    examples = ARRAYS
    odd_examples = ODD_ARRAYS

    def handler(self, folder):
        return TFModelHandlerNumpy(str(folder / "callable"))


class TestTensorContract(BeamCompatContract, ColumnsContract):
    frame = TestNumpyContract.frame
    bad_example = "no tensor"
    examples = tensorflow.unstack(FEATURES)
    odd_examples = [tensorflow.convert_to_tensor(array) for array in ODD_ARRAYS if getattr(array, "dtype", "O") != "O"]

    def handler(self, uri):
        return TFModelHandlerTensor(uri)

    def beams(self, incumbent, uri):
        return incumbent.TFModelHandlerTensor(uri)


def examples_of(handler_class):
    return ARRAYS if handler_class is TFModelHandlerNumpy else tensorflow.unstack(FEATURES)


@BOTH
@pytest.mark.parametrize("name", ["dense.keras", "dense.h5", "exported", "saved"])
def test_model_files_of_every_kind_predict(folder, handler_class, name):
    uri = str(folder / name) if handler_class is TFModelHandlerNumpy else (folder / name).as_uri()
    results = infer(handler_class(uri), examples_of(handler_class))
    assert nearly_equal(inferences(results), list(EXPECTED))
    assert {result.model_id for result in results} == {uri}


@BOTH
def test_weights_file_predicts_as_the_model(folder, handler_class):
    path = folder / "dense.weights.h5"
    handler = handler_class(path, ModelType.SAVED_WEIGHTS, dense)
    assert nearly_equal(inferences(infer(handler, examples_of(handler_class))), list(EXPECTED))


def test_custom_weights_replace_the_models(folder):
    other = dense()
    other.layers[0].set_weights([WEIGHT * 2, BIAS])
    other.save_weights(folder / "other.weights.h5")
    handler = TFModelHandlerNumpy(folder / "dense.keras", custom_weights=folder / "other.weights.h5")
    assert nearly_equal(inferences(infer(handler, ARRAYS)), list(FEATURES @ WEIGHT * 2 + BIAS))


@BOTH
def test_device_which_beam_ignores_is_a_warning_with_the_cure(handler_class):
    cure = r"\(device=...\) has no effect, here .*'CUDA_VISIBLE_DEVICES': '-1'"
    with pytest.warns(NotYetHonouredWarning, match=cure):
        handler_class("model.keras", device="CPU")


def test_named_outputs_make_a_dict_for_each_example_and_others_are_refused(folder):
    (first, *_) = infer(TFModelHandlerNumpy(folder / "named.keras"), ARRAYS)
    assert {name: output.shape.as_list() for name, output in first.inference.items()} == {"one": [1], "two": [2]}
    assert len(cloudpickle.dumps(first.inference["one"])) < 1000  # it does not keep its batch
    with pytest.raises(ValueError, match=r"tuple of 2 outputs.*inference_fn"):
        infer(TFModelHandlerNumpy(folder / "two.keras"), ARRAYS[:2])


def test_signature_with_several_inputs_takes_dicts(folder):
    handler = TFModelHandlerNumpy(folder / "module")
    results = infer(handler, ARRAYS, {"scale": tensorflow.constant(2.0)})
    assert nearly_equal([result.inference.numpy() for result in results], list(FEATURES.sum(axis=1) * 2))
    with pytest.raises(ValueError, match=r"inputs \['inputs', 'scale'\]; give all but the batch as inference_args"):
        infer(handler, ARRAYS)


def test_models_that_cannot_be_run_are_refused_with_the_cure(folder):
    with pytest.raises(ValueError, match=r"cannot be called, and its signature 'serving_default' has the inputs \[\];"):
        infer(TFModelHandlerNumpy(folder / "empty"), ARRAYS)
    with pytest.raises(AttributeError, match="load_weights"):
        TFModelHandlerNumpy(folder / "exported", custom_weights=folder / "dense.weights.h5").load_model()


class NotesCalls(keras.Model):
    """Adds 1, and notes whether it was called as a graph; if it looks at numbers, no graph can do it."""

    def __init__(self, calls, *, looks=False):
        super().__init__()
        self.note, self.looks = calls.append, looks

    def call(self, inputs):
        self.note("eager" if tensorflow.executing_eagerly() else "graph")
        return inputs + (float(inputs.numpy()[0, 0]) * 0 + 1 if self.looks else 1)


@pytest.mark.parametrize(
    ("looks", "run_eagerly", "expected"),
    [(False, False, ["graph"]), (False, True, ["eager"] * 3), (True, False, ["graph", "eager", "eager", "eager"])],
)
def test_keras_models_are_called_as_graphs_if_they_can_be(looks, run_eagerly, expected):
    calls = []
    model = NotesCalls(calls, looks=looks)
    model.run_eagerly = run_eagerly
    for _ in range(3):
        results = default_numpy_inference_fn(model, [numpy.zeros(2, numpy.float32)] * 4)
        assert [result.inference.numpy().tolist() for result in results] == [[1, 1]] * 4
    assert calls == expected


def only_first(model, batch, inference_args, model_id):
    return [(example[0], inference_args, model_id) for example in batch]


@BOTH
def test_inference_fn_replaces_the_call(uri, handler_class):
    handler = handler_class(uri, inference_fn=only_first)
    (first, *_) = infer(handler, examples_of(handler_class), {"a": 1})
    assert (float(first[0]), first[1:]) == (FEATURES[0, 0], ({"a": 1}, uri))
    assert not handler.columns_equal_rows()


class Doubling(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


def test_load_model_args_go_to_the_loader(folder):
    keras.Sequential([keras.Input((3,)), Doubling()]).save(folder / "doubling.keras")
    handler = TFModelHandlerNumpy(folder / "doubling.keras", load_model_args={"custom_objects": {"Doubling": Doubling}})
    assert nearly_equal(inferences(infer(handler, ARRAYS)), list(FEATURES * 2))


@BOTH
def test_arguments_that_contradict_each_other_are_refused(handler_class):
    weights = {"model_type": ModelType.SAVED_WEIGHTS}
    for complaint, arguments in (
        ("SAVED_WEIGHTS and create_model_fn, .* go together", weights),
        ("SAVED_WEIGHTS and create_model_fn, .* go together", {"create_model_fn": dense}),
        ("custom_weights go with .*SAVED_MODEL", {**weights, "create_model_fn": dense, "custom_weights": "w"}),
        ("must be ModelType.SAVED_MODEL or ModelType.SAVED_WEIGHTS, not 'weights'", {"model_type": "weights"}),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            handler_class("model.keras", **arguments)


def test_tensorflow_hub_models_need_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_hub", None)
    with pytest.raises(ImportError, match=r'tensorflow_hub is not installed; .*pip install .*"tensorflow-hub>='):
        TFModelHandlerNumpy("https://tfhub.dev/somebody/something/1").load_model()
