"""Elements that their handler sorts by length keep their timestamps, windows, keys and dead letters."""

from __future__ import annotations

from headrace import KeyedModelHandler, ModelHandler
from headrace.beam import RunInference
from pipelines import Run, by_second

TEXTS = ["a", "bbbb", "cc", "dddd", None, "e"]


class Padding(ModelHandler):
    """Predicts how much a text is padded, and refuses what is no text."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        return [max(map(len, batch)) - len(text) for text in batch]

    def default_length_fn(self):
        return lambda text: len(text or "")


def test_predictions_and_dead_letters_keep_what_belongs_to_their_elements():
    run = Run()
    pairs = by_second(run, "texts", [((n, text), 5 * n) for n, text in enumerate(TEXTS)])
    handler = KeyedModelHandler(Padding(min_batch_size=2, max_batch_size=2))
    good, dead = pairs | RunInference(handler).with_exception_handling()
    found, letters = run.collect(good=good, dead=dead.failed_inferences)
    span = [(0, 10), (0, 10), (10, 20), (10, 20), (20, 30), (20, 30)]
    padding = {0: 1, 1: 0, 2: 0, 3: 0, 5: 0}
    assert sorted(found) == [((n, padding[n]), 5 * n, span[n]) for n in padding]
    assert [(letter[0], time, where) for letter, time, where in letters] == [([(4, None)], 20, span[4])]
    assert ("RunInference", "useful_length") in run.metrics()
