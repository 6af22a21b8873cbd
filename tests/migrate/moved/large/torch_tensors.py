"""PyTorch: weights of a class, a method of the model as the inference function, tensors by name."""

import apache_beam as beam
import torch
from apache_beam.ml.inference.base import KeyedModelHandler, RunInference
from apache_beam.ml.inference.pytorch_inference import (
    PytorchModelHandlerKeyedTensor,
    PytorchModelHandlerTensor,
    make_tensor_model_fn,
)


class Linear(torch.nn.Module):
    """Times two."""

    def __init__(self, size: int):
        super().__init__()
        self.layer = torch.nn.Linear(size, 1, bias=False)

    def forward(self, x):
        return self.layer(x)

    def generate(self, x, plus=0):
        """What a language model would be asked."""
        return self.layer(x) + plus


def rounded(result):
    """The prediction as numbers."""
    return [round(float(y), 3) for y in result.inference.flatten()]


def build(root, folder):
    """Predictions of three handlers."""
    path = f"{folder}/linear.pt"
    torch.save({"layer.weight": torch.tensor([[2.0, 1.0]])}, path)
    options = {"state_dict_path": path, "model_class": Linear, "model_params": {"size": 2}, "device": "CPU"}
    plain = KeyedModelHandler(PytorchModelHandlerTensor(**options))
    generating = PytorchModelHandlerTensor(**options, inference_fn=make_tensor_model_fn("generate"))
    named = PytorchModelHandlerKeyedTensor(**options)
    tensors = root | "Tensors" >> beam.Create([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
    dicts = tensors | "Named" >> beam.Map(lambda tensor: {"x": tensor})
    keyed = tensors | "Keyed" >> beam.Map(lambda tensor: (int(tensor[0]), tensor))
    return (
        keyed | "A" >> RunInference(plain) | "Keys" >> beam.MapTuple(lambda key, result: (key, rounded(result))),
        tensors | "B" >> RunInference(generating, inference_args={"plus": 1}) | "Generated" >> beam.Map(rounded),
        dicts | "C" >> RunInference(named) | "By name" >> beam.Map(rounded),
    ) | beam.Flatten()
