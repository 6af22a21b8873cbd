"""A handler whose rows ``headrace run`` takes one by one, since its function might want them so."""

from __future__ import annotations

import numpy as np

from headrace.handlers.sklearn_inference import SklearnModelHandlerNumpy


def make(path):
    """Of the model in that file."""
    return SklearnModelHandlerNumpy(path, inference_fn=_predict)


def _predict(model, batch, inference_args=None):  # noqa: ARG001 - the handler gives it
    return model.predict(np.stack(batch))
