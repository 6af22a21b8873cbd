"""Errors of a handler name the common mistake behind them."""

from __future__ import annotations

import pytest

from headrace import KeyedModelHandler, predict
from toys import Acting, fixed

pytestmark = pytest.mark.usefixtures("module_travels")

PAIRS = [("a", 1.0), ("b", 2.0)]


class Floats(Acting):
    def run_inference(self, batch, model, inference_args=None):
        return [float(example) for example in batch]


class Scores(Acting):
    def run_inference(self, batch, model, inference_args=None):
        return model.score(batch)


def refuse(batch):
    raise ValueError("tuple", 3)


@pytest.mark.parametrize(
    ("handler", "elements", "hint"),
    [
        (Scores(), [1, 2], "(Scores.load_model returned None; does it lack a return?)"),
        (Floats(), PAIRS, "such as ('a', 1.0); if their first parts are keys, wrap the handler: KeyedModelHandler("),
        (Floats(), ["x"], ""),
        (KeyedModelHandler(Floats()), [("a", (1, 2))], ""),
        (Floats(), [("a", 1), "b"], ""),
        (Acting(refuse), PAIRS, ""),
    ],
)
def test_common_mistake_is_named(handler, elements, hint):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        list(predict(handler, elements, batching=fixed(2)))
    said = str(caught.value)
    assert hint in said
    assert hint or not ("pairs" in said or "return" in said)


def test_common_mistake_is_named_once_in_each_failure():
    failures = list(predict(Floats(), PAIRS, on_failure="yield"))
    assert [str(failure.error).count("the examples are pairs") for failure in failures] == [1, 1]
