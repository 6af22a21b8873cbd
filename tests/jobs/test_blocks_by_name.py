"""Columns that go to a model by their names, or as texts: the same comes of them as row by row."""

import json
import random
from types import SimpleNamespace

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

from headrace import ConfigurationError, predict_table
from headrace.handlers.onnx_inference import OnnxModelHandlerNumpy
from tables_of_all_types import OUTPUTS, parquet

TYPES = {"n": "int64", "x": "float", "t": "string", "v": "double", "y": "bool", "money": "float"}


class Session:
    """Describes what it is given for each row; fails for one with the number 1313."""

    def __init__(self, names):
        self.names = names

    def get_inputs(self):
        return [SimpleNamespace(name=name, type=f"tensor({TYPES[name]})", shape=[None]) for name in self.names]

    def run(self, _, feeds):
        if any((values == 1313).any() for values in feeds.values()):
            raise ValueError("1313 again")
        columns = [[(name, str(values.dtype), row) for row in values.tolist()] for name, values in feeds.items()]
        return [numpy.array([repr(sorted(row)) for row in zip(*columns, strict=True)], object)]


class Describing(OnnxModelHandlerNumpy):
    """Gives its columns, by name, to a session that describes them."""

    def __init__(self, names="nxtvy", **options):
        super().__init__("model.onnx", columns_are_inputs=True, **options)
        self.names = names

    def load_model(self):
        return Session(self.names)


def rows_of(seed, count):
    """Rows of which some do not fit into columns, behind those by which types are told."""
    chosen = random.Random(seed)
    odd = {
        "n": [None, 2**63, 2**53 + 1, 1313, 1.0, 1.5, "7", True, -(2**63)],
        "x": [None, 1e39, 5, "x", False, [1.5]],
        "t": [None, "", "7", 'a"\n\u00e9', 5, ["x"]],
        "v": [None, [], [1, 2], [1.5], [None, 1.5], ["a", "b"], [1e39, 0.5], 5],
        "y": [None, 1, 0.0, "true"],
    }
    for n in range(count):
        row = {"n": n, "x": n / 4, "t": f"t{n % 3}", "v": [n / 2, -1.0], "y": n % 2 == 0}
        for name in chosen.sample(sorted(row), chosen.choice([0] * 20 + [1, 2]) if n >= 1000 else 0):
            row[name] = chosen.choice(odd[name])
        yield row


@pytest.mark.parametrize("output", [*OUTPUTS, "out.csv"])
def test_json_lines(both_ways, tmp_path, output):
    rows = [*rows_of(1, 1600), {"n": 1}, {"prediction": 1}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _, letters, predictions, _ = both_ways(tmp_path / "in.jsonl", columns="nxtvy", handler=Describing(), output=output)
    assert len(letters) > 10
    assert predictions == len(rows) - len(letters)


def test_csv(both_ways, tmp_path):
    lines = [f"{n},{n / 8},t{n % 3},{n % 2 == 0},{n}" for n in range(300)]
    odd = ["x,1,t,true,1", '7,1.5,"two\nlines",true,1', "7,,,,", "7,1,,True,1", '7,1,"",True,1', "7,nan,t,True,1"]
    (tmp_path / "in.csv").write_text("\n".join(["n,x,t,y,more", *lines, *odd, "1313,1,t,True,1", *lines]))
    _, letters, _, _ = both_ways(tmp_path / "in.csv", columns="nxty", handler=Describing("nxty"))
    assert len(letters) == 5


@pytest.mark.parametrize("output", OUTPUTS)
def test_parquet(both_ways, tmp_path, output):
    count = 300
    columns = {
        "n": pyarrow.array([None if n % 31 == 0 else n % 100 for n in range(count)], pyarrow.int8()),
        "x": pyarrow.array([float("nan") if n % 37 == 0 else n for n in range(count)], pyarrow.float32()),
        "t": pyarrow.array([None if n % 29 == 0 else f"t{n % 5}" for n in range(count)]).dictionary_encode(),
        "v": pyarrow.array([[n, 2] for n in range(count)], pyarrow.list_(pyarrow.int64(), 2)),
        "y": [n % 3 == 0 for n in range(count)],
    }
    path = parquet(tmp_path / "in.parquet", **columns)
    both_ways(path, columns="ytxnv", handler=Describing(), output=output)


def test_columns_that_no_array_holds_go_row_by_row_or_are_refused_before_anything_runs(both_ways, good, tmp_path):
    table = pyarrow.parquet.read_table(good, columns=["money", "day"]).slice(0, 30)
    few = parquet(tmp_path / "few.parquet", money=table["money"], day=table["day"])
    both_ways(few, columns=["money"], handler=Describing(["money"]), in_columns=False)
    with pytest.raises(ConfigurationError, match="column 'day' holds date, which Describing cannot take; leave it out"):
        both_ways(few, columns=["money", "day"], handler=Describing())

    class OfDays(Describing):
        def example_from_row(self, row):
            return {"n": numpy.array(row["day"].toordinal())}

    both_ways(few, columns=["day"], handler=OfDays("n"), in_columns=False, threshold=1)


def test_numbers_of_a_type_in_one_file_and_of_another_in_the_next(both_ways, tmp_path):
    parquet(tmp_path / "1.parquet", n=[1, 2], t=["a", "b"])
    parquet(tmp_path / "2.parquet", n=[1.0, 2.5], t=[1, 2])
    parquet(tmp_path / "3.parquet", n=["1", "x"], t=["a", None])
    _, letters, _, _ = both_ways(tmp_path / "*.parquet", columns="nt", handler=Describing("nt"))
    assert len(letters) == 4


def test_objects_of_a_data_frame_that_are_no_column_of_arrows():
    frame = pandas.DataFrame({"n": [1, "x", 3], "t": ["a", "b", 7]})
    found = predict_table(Describing("nt"), frame, on_failure="mark")
    assert found["outcome"].tolist() == ["predicted", "failed", "failed"]


def test_texts_go_to_a_vectorizer_in_blocks(both_ways, tmp_path, handler_of):
    model = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good day", "bad day"], [1, 0])
    handler = handler_of(model, takes_texts=True)
    texts = ["good", "bad", None, "", "a good day"] * 30
    path = parquet(tmp_path / "in.parquet", t=texts, n=range(150))
    _, letters, _, _ = both_ways(path, columns="t", handler=handler)
    assert len(letters) == 30
    both_ways(path, columns=["t", "n"], handler=handler, in_columns=False, threshold=1)


DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool"]


@pytest.mark.large
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_by_name(both_ways, tmp_path, dtype):
    import torch

    from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor

    class Doubled(torch.nn.Module):
        def forward(self, x, v):
            assert x.dtype is v.dtype is getattr(torch, dtype)
            assert v.shape == (len(x), 2)
            return {"x": x.double(), "sums": (x[:, None] + v).double()}

    torch.save({}, tmp_path / "state.pt")
    handler = PytorchModelHandlerKeyedTensor(str(tmp_path / "state.pt"), Doubled, {}, dtypes={"x": dtype, "v": dtype})
    chosen = random.Random(dtype)
    whole = [None, -1, 255, 256, 65504, 65520, -(2**31), 2**31, 2**53 + 1, 1 - 2**63]
    odd = [*(one and float(one) for one in whole), 2.0**63, 0.1, float("nan"), 1e39, 1e300]
    vectors = [[n % 9, 3] if n % 40 else [1] for n in range(400)]
    for number, some in enumerate((whole, odd)):
        numbers = [chosen.choice(some) if n % 5 == 0 else type(some[1])(n % 250) for n in range(400)]
        path = parquet(tmp_path / f"{number}.parquet", x=numbers, v=vectors)
        both_ways(path, columns="xv", handler=handler)
    singles = pyarrow.array([chosen.uniform(-300, 300) for _ in range(400)], pyarrow.float32())
    path = parquet(tmp_path / "singles.parquet", x=singles, v=vectors)
    both_ways(path, columns="xv", handler=handler, threshold=1)


@pytest.mark.large
@pytest.mark.parametrize("by_name", [True, False])
def test_models_of_transformers(both_ways, tmp_path, by_name):
    torch = pytest.importorskip("transformers") and pytest.importorskip("torch")

    from headrace.handlers import huggingface_inference as handlers

    class Sums(torch.nn.Module):
        main_input_name = "x"
        from_pretrained = classmethod(lambda cls, _: cls())

        def forward(self, x, v=0):
            if (x == 9).any():
                raise ValueError("9 again")
            sums = x.sum(-1) if x.ndim > 1 else x[:, None] + v
            return {"sums": sums, "layers": (x.double(), sums > 7), "loss": sums.sum()}

    columns = {"x": [None if n == 3 else n / 4 for n in range(100)]}
    columns["v"] = [[n / 8, 1.0] if n % 30 else [1.0] for n in range(100)] if by_name else columns["x"][::-1]
    make = handlers.HuggingFaceModelHandlerKeyedTensor if by_name else handlers.HuggingFaceModelHandlerTensor
    handler = make("model", Sums, *["pt"] * by_name)
    path = parquet(tmp_path / "in.parquet", **columns)
    _, letters, predictions, _ = both_ways(path, columns="xv", handler=handler)
    assert (len(letters), predictions) == ((2, 98) if by_name else (4, 96))


@pytest.mark.large
def test_a_model_that_drops_the_axis_of_a_single_row(both_ways, tmp_path):
    import torch

    from headrace.handlers.pytorch_inference import PytorchModelHandlerKeyedTensor

    class Squeezing(torch.nn.Module):
        def forward(self, a):
            return a[:, None].squeeze()

    torch.save({}, tmp_path / "state.pt")
    handler = PytorchModelHandlerKeyedTensor(str(tmp_path / "state.pt"), Squeezing, {}, max_batch_size=2)
    path = parquet(tmp_path / "in.parquet", a=[1.0, None, 2.0, 3.0, 4.0])
    _, letters, predictions, _ = both_ways(path, columns=["a"], handler=handler)
    assert (len(letters), predictions) == (1, 4)
    for rows in (1, 2, 3):
        found = predict_table(handler, pandas.DataFrame({"a": [1.5, 2, 3][:rows]}))["prediction"]
        assert (found.dtype, found.tolist()) == ("float32", [1.5, 2, 3][:rows])


@pytest.fixture(scope="module")
def of_keras(tmp_path_factory):
    """The files of a model with a number, a text and a vector for its inputs, and with several outputs."""
    tensorflow = pytest.importorskip("tensorflow")
    keras, folder = tensorflow.keras, tmp_path_factory.mktemp("keras")
    kinds = {"n": ((1,), "float32"), "t": ((1,), "string"), "v": ((2,), "float32")}
    inputs = {name: keras.Input(shape, name=name, dtype=kind) for name, (shape, kind) in kinds.items()}
    words = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(inputs["t"])
    together = keras.layers.Concatenate()([inputs["n"], words, inputs["v"]])
    dense = keras.layers.Dense(2, kernel_initializer="ones")(together)
    model = keras.Model(inputs, {"dense": dense, "words": words})
    model.save(folder / "model.keras")
    model.export(folder / "saved", verbose=False)
    return folder


@pytest.mark.large
@pytest.mark.parametrize("of_tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("name", ["model.keras", "saved"])
def test_inputs_of_keras_by_name(both_ways, tmp_path, of_keras, name, of_tensors):
    from headrace.handlers.tensorflow_inference import TFModelHandlerNumpy, TFModelHandlerTensor

    handler = (TFModelHandlerTensor if of_tensors else TFModelHandlerNumpy)(
        str(of_keras / name), columns_are_inputs=True
    )
    columns = {
        "n": [None if n % 31 == 0 else n % 90 for n in range(200)],
        "t": [None if n % 37 == 0 else "abc"[n % 3] for n in range(200)],
        "v": [[n % 40 / 4, 2.0] if n % 41 else None for n in range(200)],
    }
    path = parquet(tmp_path / "in.parquet", **columns)
    _, letters, predictions, _ = both_ways(path, columns="vtn", handler=handler)
    assert len(letters) == 16
    assert predictions == 184


@pytest.mark.large
@pytest.mark.parametrize("of_tensors", [False, True], ids=["arrays", "tensors"])
def test_matrices_of_keras(both_ways, tmp_path, of_tensors):
    keras = pytest.importorskip("tensorflow").keras
    from headrace.handlers.tensorflow_inference import TFModelHandlerNumpy, TFModelHandlerTensor

    dtype = "float32" if of_tensors else "float64"
    model = keras.Sequential([keras.Input((2,), dtype=dtype), keras.layers.Dense(1, dtype=dtype)])
    model.export(tmp_path / "saved", verbose=False)
    handler = (TFModelHandlerTensor if of_tensors else TFModelHandlerNumpy)(str(tmp_path / "saved"))
    numbers = [None if n == 7 else n for n in range(99)]
    _, letters, _, _ = both_ways(parquet(tmp_path / "in.parquet", a=numbers, b=numbers), handler=handler)
    assert len(letters) == 1
