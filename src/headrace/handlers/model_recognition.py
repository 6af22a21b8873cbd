"""What a model's file says of itself, for every framework: which handler runs it, and which columns it wants.

No framework is imported, and no code in a file runs. A file that is a framework's, and does not say enough, is a
ConfigurationError with what to name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import Inert, KnownModel, ModelFile

__all__ = ["huggingface", "onnx", "pytorch", "sklearn", "tensorflow", "xgboost"]

_INITIALIZER, _INPUT = (7, 5), (7, 11)
_NAME, _NAME_OF_TENSOR = 1, 8
_DIMENSIONS = (2, 1, 2, 1)
"""Of an input: its type, a tensor's, the shape, and each dimension in it."""
_SAVED = "saved_model.pb"
_OLD_PICKLE = 0x1950A86A20F9469CFC6C
"""What ``torch.save`` wrote first before it wrote archives."""
_PATH = "torch_script_model_path"
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
}
"""Tasks that take one value of a row, by the end of the architecture's name."""
_WRITES = ("ForCausalLM", "LMHeadModel")
_OWN = ("sklearn.", "imblearn.")
"""Packages whose models are fitted on arrays if they know no names."""
_VECTORIZERS = "sklearn.feature_extraction.text."
_FEATURES, _COUNT = "feature_names_in_", "n_features_in_"
_CLASSES = {b"classifier": "XGBClassifier", b"regressor": "XGBRegressor", b"ranker": "XGBRanker"}
_ESTIMATOR = re.compile(rb'_estimator_type\\?": ?\\?"(\w+)')
_WIDTH = re.compile(rb'num_feature(?:SL.{8}|" ?: ?")(\d+)', re.DOTALL)
_NAMES = re.compile(rb'"feature_names" ?: ?(\[(?:"(?:[^"\\]|\\.)*",? ?)*\])')
_NAMES_IN_UBJSON = re.compile(rb"feature_names\[(?:#L.{8})?", re.DOTALL)
_LIGHTGBM_NAMES = re.compile("^feature_names=(.*)$", re.MULTILINE)
_MOST_BITS = 70
_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
"""The wire types of protocol buffers."""

_Shapes = dict[str, list[int | None]]
"""Of inputs, by name: how large each dimension is, None where that is open."""


def onnx(model: ModelFile) -> KnownModel | None:
    """The handler of arrays; the names of several inputs that each take one number of a row are the columns."""
    if model.suffix != ".onnx":
        return None
    try:
        shapes = _onnx_inputs(memoryview(model.content))
    except ValueError as error:
        raise ConfigurationError(f"it cannot be read as ONNX: {error}.") from error
    if not shapes:
        raise ConfigurationError("it cannot be read as ONNX: it has no inputs.")
    return _of_inputs(KnownModel("onnx-numpy", "an ONNX model"), shapes)


def _onnx_inputs(content: memoryview) -> _Shapes:
    """The shapes of the inputs by name, without the weights, which old versions of ONNX list there, too."""
    weights = {name for tensor in _messages(content, *_INITIALIZER) for name in _texts_at(tensor, _NAME_OF_TENSOR)}
    shapes = {_texts_at(one, _NAME)[0]: _shape_at(one, *_DIMENSIONS) for one in _messages(content, *_INPUT)}
    return {name: shape for name, shape in shapes.items() if name not in weights}


def _of_inputs(known: KnownModel, shapes: _Shapes, several: str | None = None) -> KnownModel:
    """A model with its columns if it has several inputs, for which a handler may be named; else with its width."""
    if len(shapes) < 2:
        width = next((shape[1] for shape in shapes.values() if len(shape) == 2), None)
        return known._replace(width=width)
    known = known._replace(what=f"{known.what} with {len(shapes)} inputs", columns=tuple(shapes))
    return known._replace(handler=several) if several else known._replace(arguments={"columns_are_inputs": True})


def tensorflow(model: ModelFile) -> KnownModel | None:
    """The handler of arrays, for a SavedModel's folder or a file of Keras; several inputs are columns by name."""
    if _SAVED in model.members and model.is_folder:
        known = KnownModel("tensorflow-numpy", "a SavedModel of TensorFlow")
        return _of_inputs(known, _shapes_of_signature(memoryview(model.read(_SAVED))))
    if model.suffix not in (".keras", ".h5", ".hdf5"):
        return None
    layers = model.settings("config.json").get("config", {}).get("layers", ())
    inputs = [layer["config"] for layer in layers if layer["class_name"] == "InputLayer"]
    shapes = {one.get("name", ""): one["batch_shape"] for one in inputs}
    return _of_inputs(KnownModel("tensorflow-numpy", "a model of Keras"), shapes)


def _shapes_of_signature(content: memoryview) -> _Shapes:
    """The shapes of the inputs of a SavedModel's serving signature; the fields are those of saved_model.proto."""
    for signature in _messages(content, 2, 5):
        if _texts_at(signature, 1) == ["serving_default"]:
            return {_texts_at(one, 1)[0]: _shape_at(one, 2, 3, 2) for one in _messages(signature, 2, 1)}
    return {}


def _shape_at(value: memoryview, *path: int) -> list[int | None]:
    """The sizes of dimensions; None for one that is open, which is absent, a name, or -1."""
    sizes = (dict(_fields(dimension)).get(1) for dimension in _messages(value, *path))
    return [size if isinstance(size, int) and 0 < size < 1 << 63 else None for size in sizes]


def pytorch(model: ModelFile) -> KnownModel | None:
    """The handler of tensors; of an exported program with several inputs that of their names."""
    tops = {name.partition("/")[2] for name in model.members}
    if "models/model.json" in tops:
        return _exported(model)
    if "constants.pkl" in tops and "data.pkl" in tops:
        return KnownModel("pytorch-tensor", "a TorchScript model", path_parameter=_PATH)
    pickled = model.pickled if model.suffix in (".pt", ".pth", ".bin") else None
    if "data.pkl" in tops or (pickled is not None and pickled.content == _OLD_PICKLE):
        raise ConfigurationError(
            "it holds the state of a PyTorch model, not its code; name the class: --handler pytorch-tensor "
            "--handler-arg model_class=package.module:Class; or export the model, as .pt2 or as TorchScript."
        )
    return None


def _exported(model: ModelFile) -> KnownModel:
    member = next(name for name in model.members if name.endswith("models/model.json"))
    graph = json.loads(model.read(member))["graph_module"]
    specs = [spec["user_input"]["arg"] for spec in graph["signature"]["input_specs"] if "user_input" in spec]
    names = [spec["as_tensor"]["name"] for spec in specs if "as_tensor" in spec]
    values = graph["graph"]["tensor_values"]
    shapes = {name: [size.get("as_int") for size in values[name]["sizes"]] for name in names}  # None: any size
    fixed = max((shape[0] or 0 for shape in shapes.values() if shape), default=0)
    if fixed > 1:  # a last batch may be smaller
        raise ConfigurationError(
            f"the program was exported for batches of exactly {fixed}; export it with dynamic_shapes, the first "
            "dimension of each input being torch.export.Dim.AUTO."
        )
    arguments = {"max_batch_size": 1} if fixed else {}
    known = KnownModel("pytorch-tensor", "an exported PyTorch program", arguments, _PATH)
    return _of_inputs(known, shapes, "pytorch-keyed-tensor")


def huggingface(model: ModelFile) -> KnownModel | None:
    """The handler of embeddings, of a pipeline for the task that the architecture names, or of a writing model."""
    if "modules.json" in model.members:
        return KnownModel("sentence-transformer", "a sentence-transformers model", takes="text")
    settings = model.settings("config.json") if model.is_folder else {}
    if "model_type" not in settings and "architectures" not in settings:
        return None
    name = next(iter(settings.get("architectures") or ()), "no architecture")
    what = f"a {name} of Hugging Face"
    if name.endswith(_WRITES):
        return KnownModel("huggingface-generation", what, takes="rows")
    task = next((task for end, task in _TASKS.items() if name.endswith(end)), None)
    if task is None:
        raise ConfigurationError(
            f"it holds {what}, which may do several tasks; name one: --handler huggingface-pipeline --handler-arg "
            "task=TASK."
        )
    return KnownModel("huggingface-pipeline", f"{what} for {task}", {"task": task}, takes="text")


def sklearn(model: ModelFile) -> KnownModel | None:
    """The handler of frames if the model was fitted on named columns, else that of arrays."""
    arguments: dict[str, Any] = {}
    if "_skops_version" in (schema := model.settings("schema.json")):
        content, arguments = _of_skops(schema), {"model_file_type": "skops"}
    elif model.pickled is not None:
        content = model.pickled.content
        arguments = {"model_file_type": "joblib"} if model.pickled.needs_joblib else {}
    else:
        return None
    if not isinstance(content, Inert):
        raise ConfigurationError(
            f"it holds a {type(content).__name__}, not a model; save the model alone, or name a handler of your own "
            "with --handler package.module:factory."
        )
    return _judged(content, arguments)


def _judged(estimator: Inert, arguments: Mapping[str, Any]) -> KnownModel:
    package, name = estimator.kind.partition(".")[0], estimator.kind.rpartition(".")[2]
    what = f"a {name} of {'scikit-learn' if package == 'sklearn' else package}"
    first = _first(estimator)
    own, count = _texts(first.attribute(_FEATURES)), first.attribute(_COUNT)
    if names := own or _lightgbm_names(first):
        return KnownModel("sklearn-pandas", what, arguments, columns=_used(first, names), has_underscores=not own)
    if first.kind.startswith(_VECTORIZERS):
        return KnownModel("sklearn-numpy", what, {**arguments, "takes_texts": True}, takes="text")
    if isinstance(count, int) and estimator.kind.startswith(_OWN):
        return KnownModel("sklearn-numpy", what, arguments, width=count)
    raise ConfigurationError(
        f"it holds {what}, which does not show whether it takes frames or arrays; name the handler: --handler "
        "sklearn-pandas or --handler sklearn-numpy."
    )


def _lightgbm_names(estimator: Inert) -> tuple[str, ...]:
    """The columns that a model of LightGBM was fitted on; empty if it was fitted on arrays, or is no such model."""
    booster = estimator if estimator.kind == "lightgbm.basic.Booster" else estimator.attribute("_Booster")
    text = booster.attribute("_handle") if isinstance(booster, Inert) else None
    found = _LIGHTGBM_NAMES.search(text) if isinstance(text, str) else None
    names = found[1].split(" ") if found else []
    return () if all(name == f"Column_{place}" for place, name in enumerate(names)) else tuple(names)


def _first(estimator: Inert) -> Inert:
    """The part of an estimator that sees the columns: of a pipeline its first step, of a search what it found."""
    steps, inner = estimator.attribute("steps"), estimator.attribute("estimators_")
    parts = [estimator.attribute("best_estimator_"), *(step[1] for step in (steps if isinstance(steps, list) else ()))]
    if estimator.attribute(_FEATURES) is estimator.attribute(_COUNT) is None:
        parts += [estimator.attribute("regressor_"), *(inner if isinstance(inner, list) else ())]
    first = next((part for part in parts if isinstance(part, Inert)), None)
    return estimator if first is None else _first(first)


def _used(first: Inert, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns without those that a ColumnTransformer drops: tables may lack them."""
    places, chosen = first.attribute("_transformer_to_input_indices"), first.attribute("transformers_")
    if not isinstance(places, dict) or not all(type(some) is list for some in places.values()):
        return names
    used = {place for name, how, *_ in chosen if how != "drop" for place in places.get(name, ())}
    return tuple(name for place, name in enumerate(names) if place in used)


def _texts(array: Any) -> tuple[str, ...]:
    """The elements of an array of texts, as numpy pickles it; empty if it is anything else."""
    state = array.state if isinstance(array, Inert) else None
    elements = state[-1] if isinstance(state, tuple) and state else None
    is_text = isinstance(elements, list) and all(isinstance(one, str) for one in elements)
    return tuple(elements) if is_text and elements else ()


def _of_skops(node: Mapping[str, Any]) -> Any:
    """What a node of a skops file stands for, as a pickle would hold it."""
    content, loader = node.get("content"), node.get("__loader__")
    if node.get("is_json"):
        return json.loads(content) if isinstance(content, str) else None
    if loader == "NdArrayNode" and isinstance(content, list):
        made = Inert()
        made.state = ([_of_skops(one) for one in content],)
        return made
    if isinstance(content, list):
        items = [_of_skops(one) for one in content]
        return tuple(items) if loader == "TupleNode" else items
    if loader in ("DictNode", "DefaultDictNode", "OrderedDictNode") and isinstance(content, dict):
        return {name: _of_skops(one) for name, one in content.items() if isinstance(one, dict)}
    cls = type(node["__class__"], (Inert,), {"__module__": node["__module__"]})
    made = cls()
    made.state = _of_skops(content) if isinstance(content, dict) and "__loader__" in content else None
    return made


def xgboost(model: ModelFile) -> KnownModel | None:
    """The handler of frames if the model knows names, else that of arrays; with the model's class."""
    if model.head.startswith(b"{") and b"learner" in model.head:
        state = bytes(model.content)
        estimator = _ESTIMATOR.search(state)
        name = _CLASSES.get(estimator[1], "Booster") if estimator else "Booster"
        framework, arguments = "xgboost", {"model_class": name}
    else:
        found = model.pickled
        content = None if found is None else found.content
        if found is None or not isinstance(content, Inert) or not content.kind.startswith("xgboost.sklearn."):
            return None
        booster = content.attribute("_Booster")
        handle = booster.attribute("handle") if isinstance(booster, Inert) else b""
        state = bytes(handle.arguments[0] if isinstance(handle, Inert) else handle or b"")
        name = content.kind.rpartition(".")[2]
        framework, arguments = "sklearn", {"model_file_type": "joblib"} if found.needs_joblib else {}
    what = f"{'an' if name[0] == 'X' else 'a'} {name} of XGBoost"
    names, width = _names(state), _WIDTH.search(state)
    if names:
        return KnownModel(f"{framework}-pandas", what, arguments, columns=names)
    return KnownModel(f"{framework}-numpy", what, arguments, width=int(width[1]) if width else None)


def _names(state: bytes) -> tuple[str, ...]:
    """The model's names of features; empty if it was trained on arrays."""
    if (found := _NAMES.search(state)) is not None:
        return tuple(json.loads(found[1]))
    names: list[str] = []
    start = _NAMES_IN_UBJSON.search(state)
    place = start.end() if start else len(state)
    while state[place : place + 2] == b"SL":  # a text: its length in 8 bytes, and itself
        begin = place + 10
        place = begin + int.from_bytes(state[place + 2 : begin], "big")
        names.append(state[begin:place].decode())
    return tuple(names)


def _messages(message: memoryview, *path: int) -> Iterator[memoryview]:
    if not path:
        yield message
        return
    for number, value in _fields(message):
        if number == path[0] and isinstance(value, memoryview):
            yield from _messages(value, *path[1:])


def _texts_at(message: memoryview, *path: int) -> list[str]:
    return [bytes(text).decode() for text in _messages(message, *path)]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Numbers and values of all fields: an integer, or the bytes of anything else; ValueError if it is damaged."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(tag & 7)
        if tag & 7 in (_VARINT, _WITH_LENGTH):
            size, place = _varint(message, place)
        if tag & 7 == _VARINT:
            yield tag >> 3, size or 0
            continue
        if size is None or place + size > len(message):
            raise ValueError("it is damaged, or of another format")
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """An integer, seven bits a byte, at most ten of these; and where the next field begins."""
    value = shift = 0
    while place < len(message) and shift < _MOST_BITS:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("it is damaged, or of another format")
