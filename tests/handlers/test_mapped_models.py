"""Models in shared memory predict as they did, and keep what ties their parts together.

Handlers of every framework predict in a host as they do here, and bring no other framework there.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
import warnings
import weakref
from pathlib import Path

import numpy
import onnx
import onnxruntime
import pandas
import pytest
import torch
import transformers
from skl2onnx import to_onnx
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from headrace import predict
from headrace.core.arrays import LARGE
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor
from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy, SklearnModelHandlerPandas
from headrace.ipc.weights_file import NotMappableError, attach, export
from headrace.testing import nearly_equal

pytestmark = [pytest.mark.large, pytest.mark.usefixtures("module_travels")]


@pytest.fixture
def mapped():
    files = []

    def move(value, *, destroys=True):
        files.append(export(value, destroys=destroys))
        return files[-1]

    yield move
    for file in (one for exported, _ in files for one in exported):
        os.close(file)


def inputs():
    return torch.linspace(-1, 1, 3 * 64).view(3, 64)


def called(model):
    with torch.no_grad():
        result = model(inputs())
    return result[0] if isinstance(result, tuple) else result


class Tricky(nn.Module):
    """Buffers of both kinds, a frozen and a bare parameter, and a function that cannot be imported."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(64, 64))
        self.register_buffer("passing", torch.ones(64, 64) * 2, persistent=False)
        self.frozen = nn.Parameter(torch.ones(64, 64) * 3, requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.function = lambda x: x + 1
        self.plain = torch.arange(64.0)

    def forward(self, x):
        return self.function(x @ self.kept + x @ self.passing) @ self.frozen * self.scale + self.plain


def hooked():
    model = nn.Linear(64, 64)
    model.register_forward_hook(lambda module, args, output: output * 2)
    return model


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 64)), {nn.Linear}, torch.qint8)


MODULES = {
    "linear": lambda: nn.Linear(64, 64),
    "deep": lambda: nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64)),
    "bfloat16": lambda: nn.Sequential(nn.Linear(64, 64).bfloat16(), nn.Identity()).float(),
    "recurrent": lambda: nn.LSTM(64, 64, num_layers=2),
    "tricky": Tricky,
    "hook": hooked,
    "transformer": lambda: nn.TransformerEncoderLayer(64, 4, batch_first=True),
    "quantized": quantized,
}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())
@pytest.mark.parametrize("destroys", [True, False], ids=["destroyed", "in use"])
@pytest.mark.filterwarnings("ignore:.*(quantize|TypedStorage).*:UserWarning")
def test_modules_predict_the_same_once_mapped(mapped, make, destroys):
    torch.manual_seed(0)
    model = make().eval()
    expected = called(model)
    assert torch.equal(called(attach(*mapped(model, destroys=destroys))), expected)
    assert destroys or torch.equal(called(model), expected)


def test_tensors_move_onto_their_copy_and_keep_what_they_share(mapped):
    weight = nn.Parameter(torch.arange(64.0 * 64).view(64, 64))
    view, strided, copied = weight.detach()[3], weight.detach().t()[5:7], weight.detach().clone()
    outside, first = weight.detach()[9], weight.data_ptr()
    mapped([weight, {"view": view}, strided], destroys=False)
    assert weight.data_ptr() != first == outside.data_ptr() - 9 * 64 * 4
    assert view.data_ptr() == weight.data_ptr() + 3 * 64 * 4
    assert torch.equal(weight, copied)
    assert torch.equal(strided, copied.t()[5:7])
    assert weight.requires_grad
    with torch.no_grad():
        weight[3] = 0
    assert not view.any()
    assert torch.equal(outside, copied[9])


def test_memory_of_tensors_that_moved_is_freed(mapped):
    model = nn.Sequential(nn.Linear(64, 64), nn.LSTM(64, 64))
    storages = [weakref.ref(tensor.untyped_storage()) for tensor in model.parameters() if tensor.nbytes >= LARGE]
    mapped(model, destroys=False)
    assert [storage() for storage in storages] == [None] * 3


def quantized_by_channel():
    scales, zeros = torch.linspace(0.1, 0.2, 64), torch.arange(64)
    return torch.quantize_per_channel(torch.rand(64, 64), scales, zeros, 0, torch.qint8)


UNUSUAL = {
    "sparse": torch.arange(4096.0).to_sparse,
    "conjugate": torch.arange(4096.0).type(torch.complex64).conj,
    "computed": (torch.arange(4096.0, requires_grad=True) * 2).detach,
    "expanded": lambda: torch.zeros(4096).expand(3, 4096),
    "parameter": lambda: nn.Parameter(torch.ones(4096), requires_grad=False),
    "quantized": lambda: torch.quantize_per_tensor(torch.rand(64, 64), 0.1, 3, torch.quint8),
    "quantized by channel": quantized_by_channel,
    "nested": lambda: torch.nested.nested_tensor([torch.rand(64, 64), torch.rand(32, 64)]),
}


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.filterwarnings("ignore:.*(quantize|nested|TypedStorage).*:UserWarning")
def test_unusual_tensors_in_use_stay_as_they_are(mapped, make):
    tensor = make()
    before = numbers_of(tensor)
    files, layout = mapped([tensor], destroys=False)
    assert all(map(torch.equal, numbers_of(tensor), before))
    assert all(map(torch.equal, numbers_of(attach(files, layout)[0]), before))


def numbers_of(tensor):
    plain = tensor.dequantize() if tensor.is_quantized else tensor.to_dense() if tensor.is_sparse else tensor
    return [part.clone() for part in (plain.unbind() if plain.is_nested else [plain])]


def test_tied_weights_stay_tied(mapped):
    sizes = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "vocab_size": 500}
    model = attach(*mapped(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()))
    assert model.shared.weight is model.encoder.embed_tokens.weight is model.decoder.embed_tokens.weight
    assert model.shared.weight is model.lm_head.weight
    with torch.no_grad():
        model.shared.weight[3] = 7
    assert model.lm_head.weight[3].tolist() == [7] * 64


ESTIMATORS = [
    RandomForestClassifier(5, random_state=0),
    HistGradientBoostingRegressor(max_iter=2),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda one: type(one).__name__)
def test_estimators_predict_the_same_once_mapped(mapped, estimator):
    rng = numpy.random.default_rng(0)
    examples, target = rng.normal(size=(600, 600)), rng.integers(0, 3, 600)
    estimator.fit(examples, target)
    question = examples[:50].copy()
    expected = estimator.predict(question)
    assert attach(*mapped(estimator)).predict(question).tolist() == expected.tolist()


def private_bytes():
    """Without pages of files, which the arena's remain until they are written to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def test_mapped_models_take_little_private_memory(mapped):
    place = mapped(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(40))))
    assert place[1].nbytes > 160_000_000
    torch.randn(3, 1024) @ torch.randn(1024, 1024)  # what the first product costs anyway
    before = private_bytes()
    model = attach(*place)
    with torch.no_grad():
        model(torch.zeros(3, 1024))
    assert private_bytes() - before < 16_000_000


def onnx_session():
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "graph", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(64, 64)), torch.jit.trace(nn.Linear(64, 64), inputs()))


NOT_MAPPABLE = {
    "onnx": (onnx_session, r"^it does not pickle \(TypeError: cannot pickle '.*InferenceSession' object\)"),
    "parametrized": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)),
        "parametrized modules is only supported through state_dict",
    ),
    "torchscript": (scripted, "^TorchScript is compiled code that does not pickle$"),
}


@pytest.mark.parametrize(("make", "why"), NOT_MAPPABLE.values(), ids=NOT_MAPPABLE.keys())
def test_models_that_cannot_be_mapped_say_why_and_still_predict(make, why):
    model, other = make(), torch.arange(5000.0)
    with pytest.raises(NotMappableError, match=why):
        export((other, model), destroys=True)
    assert other.sum().item() == 5000 * 4999 / 2
    if isinstance(model, nn.Module):
        assert called(model).shape == (3, 64)
    else:
        assert model.run(None, {"x": numpy.ones(1, "f4")})[0].tolist() == [1]


RNG = numpy.random.default_rng(7)
FEATURES = RNG.normal(size=(40, 3)).astype(numpy.float32)
FRAME = pandas.DataFrame(FEATURES, columns=["a", "b", "c"])
LABELS = (FEATURES.sum(axis=1) > 0).astype(int)
FRAMEWORKS = {"numpy", "sklearn", "pandas", "torch", "onnxruntime", "apache_beam"}


def frameworks(result):
    """The result, with the frameworks that its process has imported."""
    return result, FRAMEWORKS & set(sys.modules)


def sklearn_numpy(path):
    path.write_bytes(pickle.dumps(LogisticRegression().fit(FEATURES, LABELS)))
    return SklearnModelHandlerNumpy(path)


def sklearn_pandas(path):
    path.write_bytes(pickle.dumps(LogisticRegression().fit(FRAME, LABELS)))
    return SklearnModelHandlerPandas(path)


def of_onnx(path):
    model = to_onnx(LogisticRegression().fit(FEATURES, LABELS), FEATURES[:1], options={"zipmap": False})
    path.write_bytes(model.SerializeToString())
    return OnnxModelHandlerNumpy(path)


def pytorch(path):
    torch.save(nn.Linear(3, 2).state_dict(), path)
    return PytorchModelHandlerTensor(path, functools.partial(nn.Linear, 3, 2))


def xgboost(path):
    from headrace.handlers.xgboost_inference import XGBoostModelHandlerNumpy

    model = importlib.import_module("xgboost").XGBClassifier(n_estimators=5, n_jobs=1).fit(FEATURES, LABELS)
    model.save_model(path := path.with_suffix(".ubj"))
    return XGBoostModelHandlerNumpy("XGBClassifier", path)


def tensorflow(path):
    from headrace.handlers.tensorflow_inference import TFModelHandlerNumpy

    keras = importlib.import_module("tensorflow").keras
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path := path.with_suffix(".keras"))
    return TFModelHandlerNumpy(path)


CASES = [
    (sklearn_numpy, list(FEATURES), {"numpy", "pandas", "sklearn"}),  # scikit-learn itself imports pandas
    (sklearn_pandas, [FRAME[n : n + 1] for n in range(9)], {"numpy", "pandas", "sklearn"}),
    (of_onnx, list(FEATURES), {"numpy", "onnxruntime"}),
    (pytorch, list(torch.from_numpy(FEATURES)), {"numpy", "torch"}),
    (xgboost, list(FEATURES), None),
    (tensorflow, list(FEATURES), None),
]


@pytest.mark.parametrize(("make", "elements", "needed"), CASES)
def test_handlers_predict_in_hosts_as_in_process(tmp_path, make, elements, needed):
    handler = make(tmp_path / "model").with_postprocess_fn(frameworks)
    here = [result for result, _ in predict(handler, elements)]
    placements = [{"isolate": True}, {"placement": "machine", "isolate": True}, {"placement": "machine"}]
    for placement in placements[: 2 if needed else 3]:  # tests/property maps the others here, too
        there = list(predict(handler, elements, **placement))
        assert nearly_equal([result for result, _ in there], here)
        assert needed is None or there[0][1] == needed
