"""``predict`` runs a handler over any iterable."""

from __future__ import annotations

import itertools
import os

import pytest

from headrace import (
    ConfigurationError,
    Failure,
    KeyedModelHandler,
    KeyModelMapping,
    ModelHandler,
    PlacementConfig,
    predict,
)
from toys import Acting, each, fixed

pytestmark = pytest.mark.usefixtures("module_travels")


class Doubler(ModelHandler):
    def load_model(self):
        return 2

    def run_inference(self, batch, model, inference_args=None):
        if "bad" in batch:
            raise ValueError("bad")
        return [example * model + (inference_args or {}).get("plus", 0) for example in batch]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("text", {}, "needs an iterable of elements, not .*into a list"),
        (b"text", {}, "needs an iterable of elements, not .*into a list"),
        ({"a": [1, 2]}, {}, "needs an iterable of elements, not .*into a list"),
        (None, {}, "needs an iterable of elements, not .*None"),
        (5, {}, "needs an iterable of elements, not .*5"),
        ([], {"on_failure": "ignore"}, "on_failure"),
        ([], {"retry": 3}, "retry must be a RetryConfig"),
        (
            [],
            {"batch_size": 1},
            r"^predict has no argument 'batch_size': use max_batch_size=\.\.\. of the model handler",
        ),
        ([], {"max_batch_size": 1}, "^predict has no argument 'max_batch_size': it belongs to the model handler"),
        ([], {"threshold": 1}, r"'threshold': it belongs to RunInference\(\.\.\.\)\.with_exception_handling"),
        ([], {"metrics_namespace": 1}, "no argument 'metrics_namespace': it belongs to RunInference"),
        ([], {"timeuot": 1}, r"^predict has no argument 'timeuot'; did you mean 'timeout'\?"),
        ([], {"zzz": 1}, "^predict has no argument 'zzz'; it has batching, budget, cache, columns, "),
    ],
)
def test_wrong_arguments_are_refused_at_once_with_the_cure(given, options, message):
    with pytest.raises(ConfigurationError, match=message):
        predict(Doubler(), given, **options)


def test_iterable_of_rows_may_have_a_method_named_columns():
    class Result(list):  # as SQLAlchemy's
        def columns(self, *names):
            return self

    assert list(predict(Doubler(), Result([1, 2]))) == [2, 4]


def test_arguments_reach_the_model():
    assert list(predict(Doubler(), [1, 2], inference_args={"plus": 5})) == [7, 9]


def test_iterable_is_read_only_as_far_as_the_next_batch_needs():
    source = iter(itertools.count())
    predictions = predict(Doubler(), source, batching=fixed(3))
    assert next(source) == 0
    assert next(predictions) == 2
    assert next(source) == 4


@pytest.mark.parametrize("isolate", [False, True])
def test_failures_take_their_elements_place_or_are_raised(isolate):
    with pytest.raises(ValueError, match="bad"):
        list(predict(Doubler(), [1, "bad"]))
    results = list(predict(Doubler(), [1, "bad", 3], on_failure="yield", batching=fixed(3), isolate=isolate))
    assert (results[0], results[2]) == (2, 6)
    assert isinstance(results[1], Failure)
    assert (results[1].element, repr(results[1].error)) == ("bad", "ValueError('bad')")


def test_models_by_key_keep_the_order_unless_unordered():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Doubler()), KeyModelMapping(["b"], Doubler())])
    elements = [("a", 1), ("b", 2), ("b", 3), ("a", 4)]
    expected = [("a", 2), ("b", 4), ("b", 6), ("a", 8)]
    assert list(predict(handler, elements, batching=fixed(2))) == expected
    as_finished = list(predict(handler, elements, batching=fixed(2), ordered=False))
    assert as_finished == [("b", 4), ("b", 6), ("a", 2), ("a", 8)]


def test_batch_that_never_fills_does_not_hold_up_the_rest():
    handler = KeyedModelHandler([KeyModelMapping(["a"], Doubler()), KeyModelMapping(["b"], Doubler())])
    read = []

    def source():
        yield ("a", 1)
        for n in range(100_000):
            read.append(n)
            yield ("b", n)

    predictions = predict(handler, source(), batching=fixed(1000))
    assert next(predictions) == ("a", 2)
    assert len(read) < 20_000
    predictions.close()


def test_elements_that_are_batches():
    handler = Doubler().with_no_batching()
    assert list(predict(handler, [[1, 2], [3]])) == [2, 4, 6]
    results = list(predict(handler, [[1, "bad"], [3]], on_failure="yield"))
    assert results[0].element == [1, "bad"]
    assert results[1:] == [6]


def test_closing_early_releases_the_model():
    released = []

    class Model:
        def __del__(self):
            released.append(self)

    predictions = predict(Acting(load=Model), itertools.count())
    next(predictions)
    predictions.close()
    list(predict(Doubler(), [1]))
    assert len(released) == 1


# Isolated: the model in a process of its own.


def where():
    """Predicts the process that it runs in."""
    return Acting(each(lambda example: (example, os.getpid())))


def nesting():
    """Needs a host of its own for that."""
    return Acting(lambda batch: [(os.getpid(), *one) for one in predict(where(), batch, isolate=True)])


def keyed(number):
    return "even" if number % 2 == 0 else "odd", number


def test_isolated_outcomes_come_in_order_or_as_they_are_done():
    mappings = [KeyModelMapping(["even"], Doubler()), KeyModelMapping(["odd"], Doubler())]
    handler = KeyedModelHandler(mappings, 1).with_preprocess_fn(keyed).with_postprocess_fn(repr)
    expected = list(predict(handler, range(20)))
    assert list(predict(handler, range(20), isolate=True)) == expected
    assert sorted(predict(handler, range(20), isolate=True, ordered=False)) == sorted(expected)


@pytest.mark.parametrize("option", [{"timeout": 50}, {"placement": PlacementConfig(isolate=True)}], ids=str)
def test_options_that_isolate(option):
    assert next(predict(where(), [1], **option))[1] != os.getpid()


def test_iterable_is_read_a_few_batches_ahead_of_a_host():
    source = iter(itertools.count())
    predictions = predict(Doubler().with_preprocess_fn(abs), source, batching=fixed(3), isolate=True)
    assert next(source) == 0
    assert [next(predictions) for _ in range(30)] == [2 * n for n in range(1, 31)]
    assert next(source) <= 31 + 7 * 3  # one batch fills and two are on their way, to be preprocessed and to be inferred
    predictions.close()


def test_runs_at_the_same_time_have_one_host_each(processes):
    runs = [predict(where(), itertools.count(), isolate=True, batching=fixed(2)) for _ in range(2)]
    found = [[next(run) for run in runs] for _ in range(7)]
    assert [[n for n, _ in pair] for pair in found] == [[n, n] for n in range(7)]
    hosts = {tuple(host for _, host in pair) for pair in found}
    assert len(hosts) == 1
    assert len(set(*hosts)) == 2
    for run in runs:
        run.close()
    assert processes() == []


def test_host_may_have_hosts(processes):
    found = list(predict(nesting(), range(3), isolate=True, batching=fixed(3)))
    [(outer, inner)] = {(outer, inner) for outer, _, inner in found}
    assert len({os.getpid(), outer, inner}) == 3
    assert [n for _, n, _ in found] == [0, 1, 2]
    assert processes() == []


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_function_that_raises_stop_iteration_loses_nothing(prepared, ordered):
    handler = Doubler(max_batch_size=2).with_postprocess_fn(lambda value: next(iter([])) if value == 6 else value)
    handler = handler.with_preprocess_fn(int) if prepared else handler
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(predict(handler, range(10), ordered=ordered))
    outcomes = list(predict(handler, range(10), ordered=ordered, on_failure="yield"))
    assert sorted(one.error.args if isinstance(one, Failure) else (one,) for one in outcomes)[0] == ()
    assert len(outcomes) == 10
