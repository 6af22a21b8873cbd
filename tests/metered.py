"""Handlers that report what they use, and note what they are asked."""

from __future__ import annotations

import sys

import cloudpickle

from headrace import SKIP, ElementFailure, ModelHandler, Price, RemoteModelHandler, report_usage

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts cannot import it

EACH_COSTS_ONE = {"*": Price(request=1)}
ASKED: list = []
"""Examples that were requested in this process."""


class Metered(RemoteModelHandler):
    """Doubles numbers, of which 7 has no prediction, 13 fails for good, and 99 fails its request.

    A request has a million input tokens, and a thousand output tokens for each example.

    Args:
        model: the name that it reports; empty: it reports nothing.
        size: examples in a request.
    """

    def __init__(self, model="m", size=1, **options):
        super().__init__(**{"num_retries": 0, **options})
        self.model = model
        self.size = size

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        ASKED.extend(batch)
        if self.model:
            report_usage(self.model, input_tokens=1_000_000, output_tokens=1000 * len(batch))
        if 99 in batch:
            raise ValueError("no")
        plus = (inference_args or {}).get("plus", 0)
        return [ElementFailure(ValueError("13")) if n == 13 else SKIP if n == 7 else 2 * n + plus for n in batch]

    def batch_elements_kwargs(self):
        return {"min_batch_size": self.size, "max_batch_size": self.size}

    def cache_key(self):
        return ["metered", self.model]


class AsyncMetered(Metered):
    async def request(self, batch, model, inference_args=None):
        return super().request(batch, model, inference_args)


class LocalMetered(ModelHandler):
    """The same without requests; changes its examples in place, as a handler may."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        ASKED.extend(dict(one) for one in batch)
        report_usage("local", output_tokens=len(batch))
        return [one.pop("n") * 2 for one in batch]
