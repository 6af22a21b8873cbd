"""A handler of one's own that does nothing, for ``headrace run``; ``echo.py`` has Beam's."""

from __future__ import annotations

from headrace import ModelHandler, PredictionResult


class Echo(ModelHandler):
    """Says what it is given."""

    def load_model(self):
        """There is none."""
        return len

    def run_inference(self, batch, model, inference_args=None):
        """The examples themselves."""
        return [PredictionResult(text, text) for text in batch]
