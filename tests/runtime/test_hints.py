"""Errors of a handler name the common mistake behind them."""

from __future__ import annotations

import pytest

from headrace import KeyedModelHandler, MaybeKeyedModelHandler, predict
from toys import Acting, fixed

pytestmark = pytest.mark.usefixtures("module_travels")

PAIRS = [("a", 1.0), ("b", 2.0)]


class Floats(Acting):
    def run_inference(self, batch, model, inference_args=None):
        return [float(example) for example in batch]


class Scores(Acting):
    def run_inference(self, batch, model, inference_args=None):
        return model.score(batch)


def error_of(handler, elements, **options):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        list(predict(handler, elements, batching=fixed(2), **options))
    return caught.value


@pytest.mark.parametrize("options", [{}, {"isolate": True}])
def test_model_that_is_none_is_named_where_inference_fails_on_it(options):
    error = error_of(Scores(), [1, 2], **options)
    assert type(error) is AttributeError
    assert str(error) == (
        "'NoneType' object has no attribute 'score' (Scores.load_model returned None; does it lack a return?)"
    )


def test_model_that_is_none_on_purpose_is_fine():
    assert list(predict(Floats(), ["1"])) == [1.0]
    assert "None" not in str(error_of(Floats(), ["x"]))


def test_pairs_for_a_handler_without_keys_are_named():
    error = error_of(Floats(), PAIRS)
    assert type(error) is TypeError
    assert str(error).endswith(
        "not 'tuple' (the examples are pairs, such as ('a', 1.0); if their first parts are keys, wrap the handler: "
        "KeyedModelHandler(Floats(...)))"
    )


def test_pairs_are_named_once_in_each_failure():
    outcomes = list(predict(Floats(), PAIRS, on_failure="yield"))
    assert [str(outcome.error).count("the examples are pairs") for outcome in outcomes] == [1, 1]


@pytest.mark.parametrize("wrap", [KeyedModelHandler, MaybeKeyedModelHandler])
def test_pairs_for_a_keyed_handler_are_no_mistake(wrap):
    error = error_of(wrap(Floats()), [("a", (1, 2))])
    assert "tuple" in str(error)
    assert "pairs" not in str(error)


@pytest.mark.parametrize("elements", [[("a", 1), "b"], [(1.5, 2)], [("a", 1, 2)], [("a",)]])
def test_examples_that_are_no_pairs_with_keys_get_no_hint(elements):
    assert "pairs" not in str(error_of(Floats(), elements))


def test_error_about_something_else_gets_no_hint():
    def refuse(batch):
        raise ValueError("too odd")

    assert str(error_of(Acting(refuse), PAIRS)) == "too odd"


def test_error_without_a_single_text_keeps_its_arguments():
    def refuse(batch):
        raise ValueError("tuple", 3)

    assert error_of(Acting(refuse), PAIRS).args == ("tuple", 3)
