"""The test suite that every handler passes, Headrace's own and third parties': subclass it and name a handler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any

from headrace.core.config import BatchingConfig
from headrace.core.errors import extra_required
from headrace.core.keyed import KeyedModelHandler
from headrace.core.result import Failure
from headrace.testing.contract_tools import (
    Wrapped,
    batches_of,
    batches_of_all_sizes,
    identical,
    infer,
    inference_of,
    mixtures,
    nearly_equal,
    objects_calling,
    pickled,
    run_predict,
    shown,
    unwrapped,
    wrapped,
)

with extra_required("test"):
    import pytest

_GIVEN = ("handler", "examples", "inference_args", "bad_example", "odd_examples")
_NONE_GIVEN = object()
_ENV_VAR = "HEADRACE_HANDLER_CONTRACT"
_THREADS = 4


def _as_fixture(given: Any) -> Any:
    """A fixture: a method becomes one, a fixture stays as it is, any other value becomes its result."""
    if not callable(given):
        return pytest.fixture(lambda _: given)
    try:
        return pytest.fixture(given)
    except ValueError:  # it is a fixture already
        return given


def _required(name: str) -> Any:
    def missing(self: HandlerContract) -> None:
        raise NotImplementedError(
            f"{type(self).__qualname__} must define {name!r}; see headrace.testing.HandlerContract."
        )

    return pytest.fixture(missing)


class HandlerContract:
    """What a model handler promises, as tests.

    A subclass, whose name starts with ``Test`` so that pytest finds it, gives:

    - ``handler``: a new handler, without preprocessing and postprocessing functions;
    - ``examples``: a list of at least four examples that the model tells apart and never skips;
    - ``inference_args`` (optional): extra arguments for the model's call;
    - ``bad_example`` (optional): one for which the model fails;
    - ``odd_examples`` (optional): a list of examples that users mix among the others, for which the model may fail: of
      another dtype, length or order, with gaps, empty;
    - ``equal(a, b)`` (optional): whether two predictions are the same; by default ``nearly_equal`` of their
      ``inference``.

    All but ``equal`` may be plain attributes, methods (whose arguments are pytest's fixtures) or fixtures. Each test
    loads the model; override the fixture ``model`` with a wider scope if that takes long.
    """

    handler: Any = _required("handler")
    examples: Any = _required("examples")
    inference_args: Any = _as_fixture(None)
    bad_example: Any = _as_fixture(_NONE_GIVEN)
    odd_examples: Any = _as_fixture(())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _GIVEN:
            if name in vars(cls):
                setattr(cls, name, _as_fixture(vars(cls)[name]))

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two predictions are the same; in batches, a model's last digits may differ."""
        return nearly_equal(inference_of(a), inference_of(b))

    @pytest.fixture
    def model(self, handler: Any) -> Any:
        """The handler's model, loaded as a worker would."""
        handler.set_environment_vars()
        return handler.load_model()

    @pytest.fixture
    def mixed_examples(self, examples: list[Any], odd_examples: Sequence[Any], bad_example: Any) -> list[Any]:
        """Some examples of every sort that the subclass gives."""
        return [*examples[:2], *odd_examples, *([] if bad_example is _NONE_GIVEN else [bad_example])]

    def test_four_examples_or_more(self, examples: list[Any]) -> None:
        """Fewer prove little about batches."""
        assert len(examples) >= 4, "give at least 4 examples"

    def test_construction_loads_nothing(self, request: Any) -> None:
        """The machine that constructs a pipeline may have neither the memory nor the device for the model."""
        with objects_calling("load_model") as loading:
            handler = request.getfixturevalue("handler")
        assert not any(isinstance(it, type(handler)) for it in loading), "load_model ran during construction"

    def test_pickles(self, handler: Any, examples: list[Any], inference_args: Any) -> None:
        """A handler is pickled to the workers before it loads anything."""
        copied = pickled(handler)
        self._assert_same(
            infer(copied, examples, copied.load_model(), inference_args),
            infer(handler, examples, handler.load_model(), inference_args),
            "a pickled copy predicts something else",
        )

    def test_pickles_after_loading(self, handler: Any, model: Any, examples: list[Any], inference_args: Any) -> None:
        """Loading must not leave the model, or anything else that does not pickle, in the handler."""
        expected = infer(handler, examples, model, inference_args)
        copied = pickled(handler)
        found = infer(copied, examples, copied.load_model(), inference_args)
        self._assert_same(found, expected, "a copy pickled after loading predicts something else")

    def test_copies_share_a_model(self, handler: Any, examples: list[Any], inference_args: Any) -> None:
        """One copy of a handler loads and another runs: run_inference may need nothing that load_model sets."""
        runs, loads = pickled(handler), pickled(handler)
        found = infer(runs, examples, loads.load_model(), inference_args)
        expected = infer(loads, examples, loads.load_model(), inference_args)
        self._assert_same(found, expected, "a copy that did not load the model itself predicts something else")

    def test_one_prediction_for_each_example(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """This holds for batches of every size, including smaller last ones."""
        for batch in batches_of_all_sizes(examples):
            predictions = infer(handler, batch, model, inference_args)
            for example, prediction in zip(batch, predictions, strict=True):
                kept = getattr(prediction, "example", example)
                assert nearly_equal(kept, example), f"the prediction for {example!r} carries the example {kept!r}"

    def test_batched_equals_one_by_one(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """An example's prediction does not depend on the others in its batch."""
        alone = [infer(handler, [example], model, inference_args)[0] for example in examples]
        for size in range(2, len(examples) + 1):
            together = [p for batch in batches_of(examples, size) for p in infer(handler, batch, model, inference_args)]
            self._assert_same(together, alone, f"batches of {size} and of 1 predict differently")

    def test_predictions_follow_the_order_of_the_batch(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """Reversed examples give reversed predictions."""
        forward = infer(handler, examples, model, inference_args)
        backward = infer(handler, examples[::-1], model, inference_args)
        self._assert_same(backward[::-1], forward, "predictions do not follow the order of the examples")

    def test_inputs_stay_as_they_are(self, handler: Any, model: Any, examples: list[Any], inference_args: Any) -> None:
        """A failed batch is tried again, and other transforms see the same elements."""
        given = [pickled(example) for example in examples]
        batch, args = list(given), pickled(inference_args)
        infer(handler, batch, model, args)
        assert len(batch) == len(given), "run_inference changed the batch"
        assert all(map(identical, batch, given)), "run_inference changed the batch"
        assert all(map(identical, given, examples)), "run_inference changed an example"
        assert identical(args, inference_args), "run_inference changed inference_args"

    def test_same_batch_same_predictions(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """A runner may repeat a bundle, and expects the same predictions."""
        first, second = (infer(handler, examples, model, inference_args) for _ in range(2))
        self._assert_same(second, first, "the same batch, run twice, gives different predictions")

    def test_threads_share_the_model(self, handler: Any, model: Any, examples: list[Any], inference_args: Any) -> None:
        """A worker's threads run batches at the same time."""
        expected = infer(handler, examples, model, inference_args)
        with ThreadPoolExecutor(_THREADS) as pool:
            runs = [pool.submit(infer, handler, examples, model, inference_args) for _ in range(2 * _THREADS)]
        for run in runs:
            self._assert_same(run.result(), expected, "predictions change when several threads run")

    def test_num_bytes_grows_with_the_batch(self, handler: Any, examples: list[Any]) -> None:
        """Metrics count it as the size of the data."""
        sizes = [handler.get_num_bytes(examples[:n]) for n in range(1, len(examples) + 1)]
        assert all(type(size) is int and size > 0 for size in sizes), f"get_num_bytes must give positive ints: {sizes}"
        assert sizes == sorted(set(sizes)), f"get_num_bytes does not grow with the batch: {sizes}"

    def test_batching_options_are_known(self, handler: Any) -> None:
        """Options are those of BatchElements, with valid values."""
        BatchingConfig.from_kwargs(handler.batch_elements_kwargs(), handler)

    def test_metrics_namespace_is_a_name(self, handler: Any) -> None:
        """Beam refuses an empty namespace."""
        namespace = handler.get_metrics_namespace()
        assert isinstance(namespace, str), f"get_metrics_namespace() returned {namespace!r}"
        assert namespace, "get_metrics_namespace() returned an empty name"

    def test_resource_hints_are_a_dict(self, handler: Any) -> None:
        """Resource hints are a dict by name."""
        hints = handler.get_resource_hints()
        assert isinstance(hints, dict), f"get_resource_hints() returned {hints!r}"

    def test_predict_equals_calling_it(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """The runtime adds nothing and loses nothing."""
        found = run_predict(handler, examples, inference_args=inference_args)
        expected = infer(handler, examples, model, inference_args)
        self._assert_same(found, expected, "headrace.predict and run_inference predict differently")

    def test_functions_before_and_after(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """with_preprocess_fn and with_postprocess_fn compose, and leave the handler itself as it was."""
        composed = handler.with_preprocess_fn(unwrapped).with_postprocess_fn(wrapped)
        found = run_predict(composed, map(wrapped, examples), inference_args=inference_args)
        assert all(isinstance(prediction, Wrapped) for prediction in found), "the postprocessing function did not run"
        expected = infer(handler, examples, model, inference_args)
        self._assert_same([unwrapped(prediction) for prediction in found], expected, "composing changes predictions")
        assert not handler.get_preprocess_fns(), "with_preprocess_fn changed the handler itself"

    def test_elements_that_are_batches(
        self, handler: Any, model: Any, examples: list[Any], inference_args: Any
    ) -> None:
        """with_no_batching passes batches on unchanged."""
        batches = [examples[:1], examples[1:]]
        found = run_predict(handler.with_no_batching(), batches, inference_args=inference_args)
        expected = infer(handler, examples, model, inference_args)
        self._assert_same(found, expected, "with_no_batching changes predictions")

    def test_keys_are_kept(self, handler: Any, model: Any, examples: list[Any], inference_args: Any) -> None:
        """A KeyedModelHandler returns each prediction with its key."""
        pairs = list(enumerate(examples))
        found = run_predict(KeyedModelHandler(handler), pairs, inference_args=inference_args)
        assert [key for key, _ in found] == list(range(len(examples))), "keys are lost"
        expected = infer(handler, examples, model, inference_args)
        self._assert_same([prediction for _, prediction in found], expected, "keys change predictions")

    def test_a_bad_example_fails_alone(
        self, handler: Any, model: Any, examples: list[Any], bad_example: Any, inference_args: Any
    ) -> None:
        """The other examples in its batch get their predictions."""
        if bad_example is _NONE_GIVEN:
            pytest.skip("the subclass gives no bad_example")
        together = BatchingConfig(min_batch_size=len(examples) + 1, max_batch_size=len(examples) + 1)
        elements = [*examples[:2], bad_example, *examples[2:]]
        found = run_predict(handler, elements, inference_args=inference_args, batching=together, on_failure="yield")
        failed = [place for place, outcome in enumerate(found) if isinstance(outcome, Failure)]
        assert failed == [2], f"of {len(elements)} elements, of which number 2 is bad, these failed: {failed}"
        expected = infer(handler, examples, model, inference_args)
        self._assert_same(found[:2] + found[3:], expected, "a bad neighbour changes predictions")

    def test_neighbours_change_no_outcome(
        self, handler: Any, model: Any, mixed_examples: list[Any], inference_args: Any
    ) -> None:
        """An example has the same outcome alone, in pairs, and among all examples in any order."""
        elements = mixed_examples
        loaded = copy(handler)
        loaded.load_model = lambda: model

        def outcomes(places: Sequence[int]) -> list[Any]:
            batch, size = [elements[place] for place in places], len(places)
            sizes = BatchingConfig(min_batch_size=size, max_batch_size=size)
            return run_predict(loaded, batch, inference_args=inference_args, batching=sizes, on_failure="yield")

        alone = [outcomes([place])[0] for place in range(len(elements))]
        for places in mixtures(len(elements)):
            for place, found in zip(places, outcomes(places), strict=True):
                assert self._same_outcome(found, alone[place]), (
                    f"alone, the outcome of {elements[place]!r} is {shown(alone[place])}, and beside "
                    f"{[elements[other] for other in places if other != place]!r:.500} it is {shown(found)}"
                )

    def test_env_vars_are_set_before_loading(
        self, handler: Any, examples: list[Any], inference_args: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``env_vars`` reach the environment before ``load_model`` runs, if the handler takes them."""
        if not hasattr(handler, "_env_vars"):
            return
        monkeypatch.setenv(_ENV_VAR, "not yet")
        seen: list[str] = []

        def load_model() -> Any:
            seen.append(os.environ[_ENV_VAR])
            return handler.load_model()

        watched = copy(handler)
        watched._env_vars = {_ENV_VAR: "set"}
        watched.load_model = load_model
        run_predict(watched, examples, inference_args=inference_args)
        assert seen == ["set"], "env_vars were not in the environment when load_model ran"

    def _same_outcome(self, a: Any, b: Any) -> bool:
        if isinstance(a, Failure) or isinstance(b, Failure):
            return isinstance(a, Failure) and isinstance(b, Failure)
        return self.equal(a, b)

    def _assert_same(self, found: Sequence[Any], expected: Sequence[Any], complaint: str) -> None:
        assert len(found) == len(expected), f"{complaint}: {len(found)} predictions, not {len(expected)}"
        for place, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert self.equal(a, b), f"{complaint}; example {place}: {inference_of(a)!r}, not {inference_of(b)!r}"
