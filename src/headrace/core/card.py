"""A handler's summary for the table of handlers in the documentation."""

from __future__ import annotations

from typing import NamedTuple


class HandlerCard(NamedTuple):
    """A handler's row in the table; a few words of Markdown each."""

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
