"""What somebody who chooses a handler wants to know of it."""

from __future__ import annotations

from typing import NamedTuple


class HandlerCard(NamedTuple):
    """A handler's row in the table of handlers; a few words each, as Markdown."""

    example: str
    """What one is: "a numpy array"."""
    prediction: str
    """What is in ``PredictionResult.inference``."""
    weights: str
    """What becomes of the model's weights with ``large_model``: mapped into every process, or in one host, and why."""
    threads: str
    """Whether several threads may run one model at a time."""
    extra: str
    """Of ``pip install headrace[...]``."""
