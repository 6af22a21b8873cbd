"""A small image classifier of MobileNetV2's shape, with random weights, and its handler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from elsewhere.noting import NotingHandler

SIDE = 96
"""Pixels."""

_BLOCKS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
"""Expansion, channels, how many, stride of the first: table 2 of "MobileNetV2: Inverted Residuals and Linear
Bottlenecks" (Sandler et al., 2018)."""


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_in")
    return [convolution, nn.BatchNorm2d(outputs)]


class _Bottleneck(nn.Module):
    """Wide inside; its input is added where it has the output's shape."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = inputs * expansion
        widen = [*_convolution(inputs, width, 1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        deep = [*_convolution(width, width, 3, stride, groups=width), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*widen, *deep, *_convolution(width, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, inputs, height, width) to (batch, outputs, height / stride, width / stride)."""
        return images + self.layers(images) if self.adds else self.layers(images)


def make_network(classes: int = 1000) -> nn.Module:
    """3.5 million parameters; images (batch, 3, height, width) to logits (batch, classes)."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [*_convolution(3, 32, 3, stride=2), nn.ReLU6(inplace=True)]
    channels = 32
    for expansion, outputs, count, first_stride in _BLOCKS:
        for place in range(count):
            layers.append(_Bottleneck(channels, outputs, expansion, first_stride if place == 0 else 1))
            channels = outputs
    layers += [*_convolution(channels, 1280, 1), nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(1280, classes)).eval()


class Classifier:
    """The model: computes without gradients, wherever it is called from."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def predict(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        with torch.no_grad():
            return self._network(images)


class ClassifierHandler(NotingHandler):
    """The largest logit of each image.

    Args:
        folder: where it writes.
        weights: file with the state dict.
        options: those of ``headrace.ModelHandler``.
    """

    def __init__(self, folder: str, weights: str, **options: Any) -> None:
        super().__init__(folder, **options)
        self._weights = weights

    def make_rows(self, start: int, stop: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Images of noise, float32."""
        noise = torch.Generator().manual_seed(start)
        for number in range(start, stop):
            yield number, torch.randn(3, SIDE, SIDE, generator=noise)

    def make_model(self) -> Classifier:
        """From the file."""
        network = make_network()
        network.load_state_dict(torch.load(self._weights, weights_only=True))
        return Classifier(network)

    def predict(self, rows: Sequence[torch.Tensor], model: Classifier) -> list[float]:
        """One tensor to the model and one back, as Beam's handlers for PyTorch do it."""
        return model.predict(torch.stack(list(rows))).amax(dim=1).tolist()
