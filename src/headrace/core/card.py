"""What the documentation and the command line say of a handler."""

from __future__ import annotations

from typing import NamedTuple


class HandlerCard(NamedTuple):
    """A handler's row in the documentation's table, a few words of Markdown each; and what the command line says."""

    example: str
    """What an example is: "a numpy array"."""
    prediction: str
    """What ``PredictionResult.inference`` contains."""
    weights: str
    """Where the weights live with ``large_model``: mapped into every process, or in one host, and why."""
    threads: str
    """Whether several threads may run one model at the same time."""
    extra: str
    """The extra of the handler's package that brings its framework; empty: none."""
    summary: str = ""
    """What the handler runs, in one line: "a PyTorch model; a row is a tensor"."""
    command: str = ""
    """For the example of ``headrace run`` in its description: an input and what goes with it, without ``--handler`` and
    ``--output``."""
