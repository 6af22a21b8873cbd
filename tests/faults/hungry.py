"""A program that predicts with a handler that some examples, or too many at once, make eat more memory than there is.

Its argument says how, as JSON; it prints the outcome of each element, as JSON.
"""

from __future__ import annotations

import functools
import json
import sys

from headrace import BatchingConfig, Failure, predict
from headrace.testing import DoublingHandler, eat_memory

HUNGER = 2 << 30


class HungryHandler(DoublingHandler):
    def __init__(self, examples=(), at_once=10_000):
        super().__init__()
        self._examples = examples
        self._at_once = at_once

    def run_inference(self, batch, model, inference_args=None):
        if len(batch) > self._at_once or any(example in self._examples for example in batch):
            eat_memory(HUNGER)
        return super().run_inference(batch, model, inference_args)


def eat_from(culprit, value):
    if culprit in (value, getattr(value, "example", None)):
        eat_memory(HUNGER)
    return value


def described(outcome):
    if isinstance(outcome, Failure):
        return [outcome.stage.value, outcome.index, outcome.element, str(outcome.error)]
    return outcome.inference


def main(*, count, on_failure="yield", before=None, after=None, **hunger):
    handler = HungryHandler(**hunger)
    if before is not None:
        handler = handler.with_preprocess_fn(functools.partial(eat_from, before))
    if after is not None:
        handler = handler.with_postprocess_fn(functools.partial(eat_from, after))
    options = {"isolate": True, "batching": BatchingConfig(64, 64), "on_failure": on_failure}
    print(json.dumps(list(map(described, predict(handler, range(count), **options)))))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
