"""Elements are sorted by a length that their handler knows, unless an option says otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    SKIP,
    BatchingConfig,
    ConfigurationError,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    MaybeKeyedModelHandler,
    ModelHandler,
    predict,
)
from headrace.runtime.plan import make_plan


class Padding(ModelHandler):
    """Knows the length of a text; predicts with which texts it was batched. Refuses what is no text."""

    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        if not all(isinstance(text, str) for text in batch):
            raise TypeError("a text is needed")
        return ["".join(batch)] * len(batch)

    def default_length_fn(self):
        return length


def length(text):
    return len(text) if isinstance(text, str) else 1


PAIRS = {"min_batch_size": 2, "max_batch_size": 2}
TEXTS = ["a", "bbbb", "c", "dddd"]
SORTED, AS_THEY_COME = ["ac", "bbbbdddd", "ac", "bbbbdddd"], ["abbbb", "abbbb", "cdddd", "cdddd"]


def test_elements_are_batched_by_length_and_keep_their_order():
    assert list(predict(Padding(**PAIRS), TEXTS)) == SORTED


def test_keys_do_not_count():
    pairs = [("long key" * n, text) for n, text in enumerate(TEXTS)]
    keys = [key for key, _ in pairs]
    for keyed in (KeyedModelHandler(Padding(**PAIRS)), KeyedModelHandler([KeyModelMapping(keys, Padding(**PAIRS))])):
        assert [value for _, value in predict(keyed, pairs)] == SORTED
    assert list(predict(MaybeKeyedModelHandler(Padding(**PAIRS)), TEXTS)) == SORTED


@pytest.mark.parametrize(
    "options",
    [
        {"sort_by_length": False},
        {"length_fn": lambda _: 1},
        {"element_size_fn": lambda _: 1},
        {"max_batch_duration_secs": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_decide(options):
    assert list(predict(Padding(**PAIRS, **options), TEXTS)) == AS_THEY_COME
    assert list(predict(Padding(), TEXTS, batching=BatchingConfig(**PAIRS))) == AS_THEY_COME
    assert make_plan(Padding(max_batch_duration_secs=1, sort_by_length=True)).batching.sorts


def test_contradictions_are_refused():
    with pytest.raises(ConfigurationError, match="contradict each other"):
        predict(Padding(sort_by_length=False, length_fn=len), [])
    with pytest.raises(ConfigurationError, match=r"does not know the length of its examples.* give it length_fn"):
        predict(ModelHandler(sort_by_length=True), [])
    with pytest.raises(ConfigurationError, match="sort_by_length must be True or False, not 'no'"):
        ModelHandler(sort_by_length="no")


def test_what_is_no_text_fails_alone_and_in_the_model():
    results = list(predict(Padding(), ["a", None, "b"], on_failure="yield"))
    assert [isinstance(result, Failure) for result in results] == [False, True, False]
    assert repr(results[1].error) == "TypeError('a text is needed')"
    (failure,) = predict(KeyedModelHandler(Padding()), [7], on_failure="yield")
    assert "a keyed handler takes (key, example) pairs, not 7" in str(failure.error)


class Sizing(Padding):
    """Predicts the length; skips what is empty."""

    def run_inference(self, batch, model, inference_args=None):
        return [len(text) or SKIP for text in batch]


@given(st.lists(st.text("ab", max_size=5) | st.none(), max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_outcomes_are_those_of_elements_as_they_come(texts, least, more):
    def outcomes(**options):
        handler = Sizing(min_batch_size=least, max_batch_size=least + more, **options)
        results = predict(handler, texts, on_failure="yield")
        return [(one.element, repr(one.error)) if isinstance(one, Failure) else one for one in results]

    assert outcomes() == outcomes(sort_by_length=False)


def test_models_by_key_have_their_own_lengths():
    class Plain(Padding):
        def default_length_fn(self):
            return None

    plan = make_plan(KeyedModelHandler([KeyModelMapping(["a"], Padding()), KeyModelMapping(["b"], Plain())]))
    assert (plan.batching_of("a").sorts, plan.batching_of("b").sorts) == (True, False)


@pytest.mark.parametrize(
    ("smallest", "lookahead"), [(1, 512), (32, 512), (64, 1024), (100, 1600), (256, 2048), (3000, 6000)]
)
def test_a_look_ahead_holds_some_batches_and_little_time(smallest, lookahead):
    handler = Padding(min_batch_size=smallest)
    assert make_plan(handler).batching.lookahead == lookahead
