"""A small PyTorch network on a Flink cluster: ``python engines/network_on_flink.py``; see README.md beside this file.

17 MB of weights, once for the machine with Headrace and, with ``large_model=True``, with Beam's own beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from command import run_kinds
from job import Job
from recording import Recorded

from headrace import PlacementConfig
from headrace.beam import RunInference
from headrace.handlers.pytorch_inference import PytorchModelHandlerTensor

WIDTH = 1024
ROWS = 960
BATCH = 16


class Network(torch.nn.Module):
    """Classifies rows of 64 numbers; before them a row has its own number, which does not count."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, WIDTH), *hidden, torch.nn.Linear(WIDTH, 10))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.layers(rows[:, 1:])


class OnHeadrace(Recorded, PytorchModelHandlerTensor):
    """Headrace's handler."""


def row(number: int) -> torch.Tensor:
    """A row of its own for each number."""
    values = torch.randn(65, generator=torch.Generator().manual_seed(number))
    values[0] = number
    return values


def rows(part: int, *, parts: int) -> Iterator[torch.Tensor]:
    """Those of one part."""
    return map(row, range(part, ROWS, parts))


def label(said: torch.Tensor) -> int:
    """The class."""
    return int(said.argmax())


def make(kind: str, folder: Path, words: argparse.Namespace) -> Job:
    """The job of a kind."""
    path = folder / "weights.pt"
    torch.manual_seed(7)
    network = Network().eval()
    torch.save(network.state_dict(), path)
    with torch.inference_mode():
        expected = {number: label(network(row(number)[None])[0]) for number in range(ROWS)}
    infer = of_beam(path, words) if kind == "beam" else of_headrace(path, words)
    return Job(f"network, {kind}", "beam" if kind == "beam" else "headrace", rows, infer, label, expected)


def of_headrace(path: Path, words: argparse.Namespace) -> Any:
    """Makes Headrace's RunInference."""

    def infer() -> Any:
        handler = OnHeadrace(str(path), Network, {}, min_batch_size=BATCH, max_batch_size=BATCH)
        handler.delay_secs = words.delay
        placement = PlacementConfig("machine", linger_secs=words.linger)
        return RunInference(handler, placement=placement, model_identifier="network")

    return infer


def of_beam(path: Path, words: argparse.Namespace) -> Any:
    """Makes Beam's."""
    from apache_beam.ml.inference import base, pytorch_inference

    class OnBeam(Recorded, pytorch_inference.PytorchModelHandlerTensor):
        delay_secs = words.delay

    def infer() -> Any:
        sizes = {"min_batch_size": BATCH, "max_batch_size": BATCH}
        handler = OnBeam(state_dict_path=str(path), model_class=Network, model_params={}, large_model=True, **sizes)
        return base.RunInference(handler, model_identifier="network")

    return infer


if __name__ == "__main__":
    run_kinds(__doc__, ("plain", "killed", "beam"), make)
