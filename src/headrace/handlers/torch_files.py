"""What a file of PyTorch says of its model: TorchScript, an exported program, or only a state."""

from __future__ import annotations

import json
from typing import Any

from headrace.core.errors import ConfigurationError
from headrace.core.model_files import KnownModel, ModelFile

__all__ = ["recognise"]

_OLD_PICKLE = 0x1950A86A20F9469CFC6C
"""What ``torch.save`` wrote first before it wrote archives."""
_PATH = "torch_script_model_path"


def recognise(model: ModelFile) -> KnownModel | None:
    """The handler of tensors; of an exported program with several inputs that of their names.

    Raises:
        ConfigurationError: the file holds no code, so that the model's class has to be named.
    """
    tops = {name.partition("/")[2] for name in model.members}
    if "models/model.json" in tops:
        return _exported(model)
    if "constants.pkl" in tops and "data.pkl" in tops:
        return KnownModel("pytorch-tensor", "a TorchScript model", path_parameter=_PATH)
    is_old = (
        model.suffix in (".pt", ".pth", ".bin") and model.pickled is not None and model.pickled.content == _OLD_PICKLE
    )
    if is_old or "data.pkl" in tops:
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
    shapes = [[_size(size) for size in graph["graph"]["tensor_values"][name]["sizes"]] for name in names]
    arguments = _batches(shapes)
    what = f"an exported PyTorch program with {len(names)} input{'s'[: len(names) != 1]}"
    if len(names) > 1:
        return KnownModel("pytorch-keyed-tensor", what, arguments, _PATH, columns=tuple(names))
    width = shapes[0][1] if shapes and len(shapes[0]) == 2 else None
    return KnownModel("pytorch-tensor", what, arguments, _PATH, width=width)


def _batches(shapes: list[list[int | None]]) -> dict[str, Any]:
    """The batch size of a program that was exported for one only.

    Raises:
        ConfigurationError: it is more than 1: a last batch may be smaller.
    """
    fixed = max((shape[0] or 0 for shape in shapes if shape), default=0)
    if fixed > 1:
        raise ConfigurationError(
            f"the program was exported for batches of exactly {fixed}; export it with dynamic_shapes, the first "
            "dimension of each input being torch.export.Dim.AUTO."
        )
    return {"max_batch_size": 1} if fixed else {}


def _size(size: dict[str, Any]) -> int | None:
    found = size.get("as_int")
    return found if isinstance(found, int) else None
